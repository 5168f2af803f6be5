"""One side of the plug-in's cost benchmark: a scheduler, stock or ours, in a process of its own.

In one process they would undo each other's fast paths at every turn, because CPython's interpreter
adapts its code to the classes that it meets, and no engine ever runs two. No model runs: its
answers are played, so the times are the schedulers' own: processor time, because they wait for
nothing, and what else runs on the machine then counts less.

Host: bench.scheduler_overhead."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import statistics
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from engine.marks import Marks
from engine.params import EngineParams, StepTimeStart
from policy.vocabulary import Controller, RequestClass, Role

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

BLOCK = 16
MAX_MODEL_LEN = 65_536
PROMPT_TOKENS = 64
OUTPUT_TOKENS = 128
"""Of a request, for its share of `add_request`; only under `arrivals` requests really end."""
CHUNK_TOKENS = 16
WARM_UP_STEPS = 64
"""Also what CPython needs to adapt the lines that a step runs once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Decoding requests, and jobs of which the first has most of its prefix computed."""

    running: int
    shadow_jobs: int
    prefix_tokens: int
    asynchronous: bool
    chunk: str
    """`none`: no jobs. `granted`: one in every step. `tight`: likewise, and the deadlines are close
    enough to be looked through in every step. `refused`: they leave no time. `arrivals`: requests
    come and go, and a chunk is in steps in which none arrives."""
    spare_blocks: int = 0
    """Of the pool, beyond what the requests may need."""


class Totals(NamedTuple):
    """Of one case, after its last turn."""

    add_request_s: float
    """Share of one iteration, if the running requests come and go."""
    message_bytes: int
    """Pickled SchedulerOutput, which goes to every worker."""
    shadow_tokens: int


def serve(connection: Connection, model: str, plugin: bool) -> None:
    """Answers `begin` (a case), `turn` (so many steps, each with its time) and `end` (the totals),
    until the other end is closed."""
    logging.disable(logging.WARNING)
    # Both on one core: what shares the other one would count for one side alone.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    side: Side | None = None
    while True:
        try:
            word, argument, steps = connection.recv()
        except EOFError:
            return
        answer: list[float] | Totals | None = None
        if word == "begin":
            side = None  # two pools need not fit into the memory
            side = Side(argument, model, steps, plugin=plugin)
        elif side is not None:
            answer = side.turn(steps) if word == "turn" else side.totals()
        connection.send(answer)


class Side:
    """One scheduler and its requests, warmed up."""

    def __init__(self, case: Case, model: str, steps: int, *, plugin: bool) -> None:
        from engine.fake_runner import FakeRunner

        self._case = case
        self._steps = steps
        self._scheduler = _scheduler(case, model, steps, plugin=plugin)
        self._runner = FakeRunner()
        self._depth = 2 if case.asynchronous else 1
        self._in_flight: deque[Any] = deque()
        self._adds_s: list[float] = []
        self._messages: list[int] = []
        self._requests = 0
        if plugin:
            self._begin_jobs()
        for index in range(case.running):
            self._add(self._next_request(index * OUTPUT_TOKENS // case.running))
        for _ in range(_warm_up_steps(case)):
            self._step()
        self._shadow_tokens_before = self._shadow_tokens()
        gc.collect()
        gc.freeze()  # as vLLM's engine does once it has started

    def turn(self, steps: int) -> list[float]:
        steps_s = [self._step() for _ in range(steps)]
        self._messages.append(len(pickle.dumps(self._last_output)))
        return steps_s

    def totals(self) -> Totals:
        gc.unfreeze()
        each_s = statistics.median(self._adds_s)
        come_and_go = self._case.chunk == "arrivals"  # then a step's time has it already
        return Totals(
            add_request_s=0.0 if come_and_go else each_s * self._case.running / OUTPUT_TOKENS,
            message_bytes=int(statistics.median(self._messages)),
            shadow_tokens=self._shadow_tokens() - self._shadow_tokens_before,
        )

    def _step(self) -> float:
        """Build one, bring the oldest one back."""
        step_s = sum(self._add(request) for request in self._arrivals())
        started_s = time.thread_time()
        output = self._scheduler.schedule()
        step_s += time.thread_time() - started_s
        self._last_output = output
        self._in_flight.append(output)
        if len(self._in_flight) >= self._depth:
            oldest = self._in_flight.popleft()
            answer = self._runner.answer(oldest)
            started_s = time.thread_time()
            self._scheduler.update_from_output(oldest, answer)
            step_s += time.thread_time() - started_s
        return step_s

    def _arrivals(self) -> list[Any]:
        """As many as have ended."""
        if self._case.chunk != "arrivals":
            return []
        missing = self._case.running - len(self._scheduler.running) - len(self._scheduler.waiting)
        return [self._next_request() for _ in range(missing)]

    def _add(self, request: Any) -> float:
        started_s = time.thread_time()
        self._scheduler.add_request(request)
        self._adds_s.append(time.thread_time() - started_s)
        return self._adds_s[-1]

    def _next_request(self, sooner_tokens: int = 0) -> Any:
        """`sooner_tokens`: so that those of the beginning do not all end at once."""
        index, self._requests = self._requests, self._requests + 1
        ends = self._case.chunk == "arrivals"
        tokens = OUTPUT_TOKENS - sooner_tokens if ends else MAX_MODEL_LEN - PROMPT_TOKENS
        return _request(f"n{index}", index, PROMPT_TOKENS, tokens)

    def _begin_jobs(self) -> None:
        """An idle engine computes the first job's prefix, all but what the steps to come need."""
        case, scheduler = self._case, self._scheduler
        for index in range(case.shadow_jobs):
            seed = 1_000_000 + index
            job = _request(f"shadow{index}", seed, case.prefix_tokens, 1, RequestClass.SHADOW)
            scheduler.add_request(job)
        if case.chunk not in ("granted", "tight"):
            return
        steps = self._steps + _warm_up_steps(case) + 16
        step_tokens = scheduler.max_num_scheduled_tokens
        while (spare_tokens := self._missing_tokens() - steps * CHUNK_TOKENS) > 0:
            # An idle engine's chunks grow; the last one must not take what the steps to come need.
            scheduler.max_num_scheduled_tokens = min(step_tokens, max(BLOCK, spare_tokens))
            self._step()
        scheduler.max_num_scheduled_tokens = step_tokens

    def _missing_tokens(self) -> int:
        missing: int = self._scheduler.shadows["shadow0"].missing_tokens
        return missing

    def _shadow_tokens(self) -> int:
        stats = getattr(self._scheduler, "shadow_stats", None)
        return 0 if stats is None else stats.tokens


def _warm_up_steps(case: Case) -> int:
    """2,048 tokens of prompts in a step; requests that come and go have to be all of that kind."""
    return WARM_UP_STEPS + case.running // 8 + OUTPUT_TOKENS * (case.chunk == "arrivals")


def _scheduler(case: Case, model: str, steps: int, *, plugin: bool) -> Any:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    from colocated.scheduler import ColocatedScheduler
    from engine.fake_runner import build_scheduler

    stock = AsyncScheduler if case.asynchronous else Scheduler
    tokens = case.running * (PROMPT_TOKENS + 2 * steps + 1000) + 2 * case.prefix_tokens
    return build_scheduler(
        ColocatedScheduler if plugin else stock,
        asynchronous=case.asynchronous,
        blocks=tokens // BLOCK + case.running + 1000 + case.spare_blocks,
        block_size=BLOCK,
        model=model,
        hf_overrides={"max_position_embeddings": MAX_MODEL_LEN},
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=2048,
        max_num_seqs=case.running + 8,
        additional_config={"shadowprefill": _params(case).to_object()},
    )


def _params(case: Case) -> EngineParams:
    """`tight`: next to the whole of a huge SLO is margin, so that the deadlines bind and still
    leave time for a chunk."""
    return EngineParams(
        instance="bench",
        model="bench",
        role=Role.COLOCATED,
        slo_ttft_s=1e6,
        slo_tpot_s=1e-6 if case.chunk == "refused" else 1e6,
        controller=Controller.HARVEST_SLO,
        beta=1.0,
        delta=0.025,
        margin=0.999_999 if case.chunk == "tight" else 0.1,
        n_min_tokens=CHUNK_TOKENS,
        iteration_cap_s=3600.0,
        max_chunk_tokens=CHUNK_TOKENS,
        segment_tokens=MAX_MODEL_LEN,
        kv_cap_share=1.0,
        idle_age_s=0.0,
        min_switch_probability=0.0,
        shadow_timeout_s=1e6,
        pull_timeout_s=1e6,
        step_time=StepTimeStart(
            fixed_s=1e-3, s_per_request=0.0, s_per_token=1e-6, s_per_token_context=0.0
        ),
    )


def _request(
    name: str,
    seed: int,
    tokens: int,
    max_tokens: int,
    request_class: RequestClass = RequestClass.NORMAL,
) -> Any:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    from engine.fake_runner import block_hasher

    marks = Marks(request_class=request_class, session_id=name)
    sampling = SamplingParams(
        max_tokens=max_tokens, ignore_eos=True, extra_args=dict(marks.to_xargs())
    )
    ids = [seed * MAX_MODEL_LEN + position for position in range(tokens)]
    return Request(name, ids, sampling, None, block_hasher=block_hasher(BLOCK))
