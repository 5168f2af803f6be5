"""What the scheduler knows about time: each request's clock, each step's duration.

Translates vLLM's requests and steps into the words of policy.slack (RequestLoad, StepLoad's plan)
and feeds finished steps back to the latency model and the credit. Decides nothing.

Host: engine.scheduler."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from policy.slack import RequestLoad, SlackController, SlackGrant
from policy.step_time import StepTimeModel, attended
from policy.vocabulary import RequestClass

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.request import Request

    from engine.marks import Marks

LONGEST_TRANSIT_S = 60.0
"""A front end's wall clock that is further off than this is not believed."""


@dataclass(slots=True)
class RequestClock:
    """Of one normal or routed request, on the engine's monotonic clock."""

    marks: Marks
    arrival_s: float
    first_token_s: float | None = None
    iterations: int = 0
    """Outputs since the first token."""


@dataclass(slots=True)
class Batch:
    """What a step carries, in the units of the latency model."""

    requests: int = 0
    tokens: int = 0
    pairs: float = 0.0

    def add(self, tokens: int, context_tokens: int) -> None:
        self.requests += 1
        self.tokens += tokens
        self.pairs += attended(tokens, context_tokens)


@dataclass(slots=True)
class BuiltStep:
    """A step that was scheduled and whose output has not come back."""

    output: SchedulerOutput
    built_s: float
    whole: Batch
    foreground: Batch
    shadow: Batch
    decode_only: bool
    carries_routed: bool
    grant: SlackGrant
    waiting_requests: int
    """Normal and routed ones, when the step was planned."""


@dataclass(frozen=True, slots=True)
class FinishedStep:
    """A step whose output has come back, and the credit once it was observed."""

    step: BuiltStep
    step_s: float
    credit_s: float


class EngineClock:
    """With two steps in flight (async scheduling), one begins when the one before it ended."""

    def __init__(
        self, controller: SlackController, step_time: StepTimeModel, chunk_tokens: int
    ) -> None:
        self._controller = controller
        self._step_time = step_time
        self._chunk_tokens = chunk_tokens
        self._requests: dict[str, RequestClock] = {}
        self._built: deque[BuiltStep] = deque()
        self._previous_end_s = float("-inf")

    def arrived(self, request: Request, marks: Marks, now_s: float) -> float:
        """How long the request has waited in the engine's inbox."""
        # The request waited for the previous step in the engine's inbox; that wait is part of its
        # TTFT. Only this difference is taken from the wall clock.
        transit_s = time.time() - request.arrival_time
        transit_s = transit_s if 0 <= transit_s <= LONGEST_TRANSIT_S else 0.0
        self._requests[request.request_id] = RequestClock(marks, now_s - transit_s)
        return transit_s

    def forget(self, request_id: str) -> None:
        self._requests.pop(request_id, None)

    def foreground(
        self, running: Iterable[Request], token_budget: int
    ) -> tuple[tuple[RequestLoad, ...], Batch]:
        """The running requests, and what vLLM is about to schedule of them."""
        loads: list[RequestLoad] = []
        planned = Batch()
        for request in running:
            context = request.num_computed_tokens
            missing = request.num_tokens_with_spec + request.num_output_placeholders - context
            tokens = min(missing, token_budget - planned.tokens)
            if tokens > 0:
                planned.add(tokens, context)
            loads.append(self._load(request, context + max(tokens, 0)))
        return tuple(loads), planned

    def _load(self, request: Request, context_tokens: int) -> RequestLoad:
        clock = self._requests[request.request_id]
        rest_tokens = request.num_tokens - context_tokens
        return RequestLoad(
            request_class=clock.marks.request_class,
            is_prefill=clock.first_token_s is None,
            arrival_s=clock.arrival_s,
            first_token_s=clock.first_token_s or 0.0,
            iterations_since_first_token=clock.iterations,
            remaining_prefill_s=self._prefill_s(rest_tokens, context_tokens),
            ttft_s=clock.marks.ttft_budget_s,
            tpot_s=clock.marks.tpot_s,
        )

    def _prefill_s(self, tokens: int, context_tokens: int) -> float:
        seconds = 0.0
        while tokens > 0:
            chunk = min(tokens, self._chunk_tokens)
            seconds += self._step_time.predicted_s(1, chunk, attended(chunk, context_tokens))
            tokens, context_tokens = tokens - chunk, context_tokens + chunk
        return seconds

    def built(
        self,
        output: SchedulerOutput,
        requests: Mapping[str, Request],
        shadow_ids: Collection[str],
        now_s: float,
        grant: SlackGrant,
        waiting_requests: int,
    ) -> None:
        """vLLM has built a step. `now_s` is the time at which it began to."""
        whole, foreground, shadow = Batch(), Batch(), Batch()
        decode_only, carries_routed = True, False
        for request_id, tokens in output.num_scheduled_tokens.items():
            request = requests[request_id]
            context = request.num_computed_tokens - tokens
            whole.add(tokens, context)
            if request_id in shadow_ids:
                shadow.add(tokens, context)
                continue
            foreground.add(tokens, context)
            clock = self._requests[request_id]
            decode_only = decode_only and clock.first_token_s is not None and tokens == 1
            carries_routed |= clock.marks.request_class is RequestClass.ROUTED
        self._built.append(
            BuiltStep(
                output=output,
                built_s=now_s,
                whole=whole,
                foreground=foreground,
                shadow=shadow,
                decode_only=decode_only,
                carries_routed=carries_routed,
                grant=grant,
                waiting_requests=waiting_requests,
            )
        )

    def done(self, output: SchedulerOutput, now_s: float) -> FinishedStep | None:
        """The output of a step has come back; None if that step carried nothing."""
        finished: FinishedStep | None = None
        while self._built:
            step = self._built.popleft()
            if step.output is output:
                finished = self._finished(step, now_s - max(step.built_s, self._previous_end_s))
                break
        self._previous_end_s = now_s
        return finished

    def _finished(self, step: BuiltStep, step_s: float) -> FinishedStep | None:
        if step.whole.requests == 0:
            return None
        self._observe(step, step_s)
        return FinishedStep(step, step_s, self._controller.credit_s)

    def _observe(self, step: BuiltStep, step_s: float) -> None:
        whole, foreground = step.whole, step.foreground
        extra_s = 0.0
        if whole.requests > foreground.requests:
            without_s = self._step_time.predicted_s(
                foreground.requests, foreground.tokens, foreground.pairs
            )
            extra_s = max(0.0, step_s - without_s)
        self._step_time.observe(step_s, whole.requests, whole.tokens, whole.pairs)
        # A step of shadow work alone delayed nobody: it neither earns nor spends.
        if foreground.requests:
            self._controller.observe(step_s, step.decode_only, step.carries_routed, extra_s)

    def emitted(self, outputs: Mapping[int, EngineCoreOutputs], now_s: float) -> None:
        for client_outputs in outputs.values():
            for output in client_outputs.outputs:
                clock = self._requests.get(output.request_id)
                if clock is None or not output.new_token_ids:
                    continue
                if clock.first_token_s is None:
                    clock.first_token_s = now_s
                else:
                    clock.iterations += 1
