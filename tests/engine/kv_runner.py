"""A model runner that computes nothing, but knows what each KV slot of its pool would hold.

A slot holds a digest of the tokens up to its own, as a slot of a real model depends on all of them.
The view of requests and block tables is kept as vLLM's GPUModelRunner keeps it, from what the
scheduler sends alone. So a step that would attend to a block that was given away, to one that was
cached before it was computed, or to a table that lost a block, fails here, where a real model would
answer something else without a word."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vllm.v1.outputs import ModelRunnerOutput

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm.v1.core.sched.output import SchedulerOutput

VOCABULARY = 50_000


def digests_after(digests: list[int], tokens: Iterable[int]) -> None:
    """Extends a list of the digests of a text's slots."""
    last = digests[-1] if digests else 0
    for token in tokens:
        last = hash((last, token))
        digests.append(last)


def answer_to(prompt: list[int], max_tokens: int) -> list[int]:
    """What the model says, whatever runs beside it."""
    digests: list[int] = []
    digests_after(digests, prompt)
    answer: list[int] = []
    for _ in range(max_tokens):
        answer.append(digests[-1] % VOCABULARY)
        digests_after(digests, answer[-1:])
    return answer


@dataclass(slots=True)
class _Cached:
    """A request as the worker knows it."""

    prompt: list[int]
    blocks: list[int]
    computed_tokens: int
    answer: list[int] = field(default_factory=list)
    digests: list[int] = field(default_factory=list)

    def need_digests(self, end: int) -> None:
        tokens = self.prompt + self.answer
        assert end <= len(tokens), (end, len(tokens), "a token that was never sampled")
        digests_after(self.digests, tokens[len(self.digests) : end])

    def cut_answer(self, tokens: list[int]) -> None:
        if tokens != self.answer:
            self.answer = tokens
            del self.digests[len(self.prompt) :]


class KvRunner:
    """Executes steps in the order in which they were built, as a worker does."""

    def __init__(self, blocks: int, block_size: int, *, asynchronous: bool) -> None:
        self._block_size = block_size
        self._asynchronous = asynchronous
        self._slots = [0] * (blocks * block_size)
        self._requests: dict[str, _Cached] = {}
        self._batch: set[str] = set()

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        self._update_states(output)
        scheduled = output.num_scheduled_tokens
        written: dict[int, str] = {}
        for name, tokens in scheduled.items():
            self._write(name, tokens, written)
        for name, tokens in scheduled.items():
            self._check_table(name, self._requests[name].computed_tokens + tokens)
        names = list(scheduled)
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[self._sampled(name, scheduled[name]) for name in names],
        )

    def start_of(self, name: str) -> int:
        """Where the last step that carried this request began in its text."""
        return self._requests[name].computed_tokens

    def _update_states(self, output: SchedulerOutput) -> None:
        for name in output.finished_req_ids:
            self._requests.pop(name, None)
            self._batch.discard(name)
        cached = output.scheduled_cached_reqs
        self._batch &= output.num_scheduled_tokens.keys() - cached.resumed_req_ids
        for new in output.scheduled_new_reqs:
            assert new.req_id not in self._requests, new.req_id
            blocks = list(new.block_ids[0])
            prompt = list(new.prompt_token_ids)
            self._requests[new.req_id] = _Cached(prompt, blocks, new.num_computed_tokens)
        for index, name in enumerate(cached.req_ids):
            self._update_cached(output, index, name)
        self._batch |= output.num_scheduled_tokens.keys()

    def _update_cached(self, output: SchedulerOutput, index: int, name: str) -> None:
        cached = output.scheduled_cached_reqs
        request, new_blocks = self._requests[name], cached.new_block_ids[index]
        request.computed_tokens = cached.num_computed_tokens[index]
        answered = cached.num_output_tokens[index]
        if answered < len(request.answer):
            request.cut_answer(request.answer[:answered])
        if name in cached.resumed_req_ids:
            assert name not in self._batch, name
            assert new_blocks is not None, name
            request.blocks = list(new_blocks[0])
        elif new_blocks is not None:
            request.blocks.extend(new_blocks[0])
        if name not in self._batch and self._asynchronous and answered:
            request.cut_answer(cached.all_token_ids[name][-answered:])

    def _write(self, name: str, tokens: int, written: dict[int, str]) -> None:
        request, size = self._requests[name], self._block_size
        start = request.computed_tokens
        end = start + tokens
        assert len(request.blocks) * size >= end, (name, len(request.blocks), end)
        request.need_digests(end)
        for position in range(start, end):
            slot = request.blocks[position // size] * size + position % size
            other = written.setdefault(slot, name)
            assert other == name, f"{name} and {other} write slot {slot} in one step"
            self._slots[slot] = request.digests[position]

    def _check_table(self, name: str, end: int) -> None:
        request, size = self._requests[name], self._block_size
        for index, start in enumerate(range(0, end, size)):
            expected = request.digests[start : min(start + size, end)]
            at = request.blocks[index] * size
            assert self._slots[at : at + len(expected)] == expected, (
                f"{name} attends to foreign KV: block {request.blocks[index]} at token {start} "
                f"of {end}, {request.computed_tokens} computed before"
            )

    def _sampled(self, name: str, tokens: int) -> list[int]:
        request = self._requests[name]
        end = request.computed_tokens + tokens
        if end < len(request.prompt) + len(request.answer):
            return []
        token = request.digests[end - 1] % VOCABULARY
        request.answer.append(token)
        return [token]
