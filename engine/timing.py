"""Each step of the engine: what it carries, when it began, how long it took.

Translates vLLM's steps into the words of policy.step_time and feeds finished ones back to the
latency model and the credit. Decides nothing. Sums over a batch come from the lists that vLLM has
built anyway: a look at each of hundreds of requests would cost more than all the rest.

Hosts: engine.planning, engine.scheduler."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from policy.step_time import NO_BATCH, Batch, StepTimeModel, attended

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

    from engine.request_clocks import RequestClocks
    from policy.slack import SlackController, SlackGrant


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
    predicted_s: float
    grant: SlackGrant
    waiting_requests: int
    """Normal and routed ones, when the step was planned."""


class FinishedStep(NamedTuple):
    """A step whose output has come back, and the credit once it was observed."""

    step: BuiltStep
    step_s: float
    credit_s: float


class EngineClock:
    """With two steps in flight (async scheduling), one begins when the one before it ended."""

    def __init__(
        self, controller: SlackController, step_time: StepTimeModel, clocks: RequestClocks
    ) -> None:
        self._controller = controller
        self._step_time = step_time
        self._clocks = clocks
        self._built: deque[BuiltStep] = deque()
        self._previous_end_s = -inf

    def in_flight_s(self) -> tuple[float, float]:
        """Predicted time of the steps that have not come back, and what they take of the credit."""
        if not self._built:
            return 0.0, 0.0
        return (
            sum(step.predicted_s for step in self._built),
            sum(step.grant.charge_s for step in self._built),
        )

    def built(
        self,
        output: SchedulerOutput,
        requests: Mapping[str, Request],
        shadows: Sequence[Request],
        now_s: float,
        grant: SlackGrant,
        waiting_requests: int,
    ) -> None:
        """vLLM has built a step. `now_s` is the time at which it began to, `shadows` are those that
        it was shown."""
        scheduled = output.num_scheduled_tokens
        shadow = NO_BATCH
        for request in shadows:
            tokens = scheduled.get(request.request_id, 0)
            if tokens:
                shadow = shadow.plus(tokens, request.num_computed_tokens - tokens)
        foreground, widest = _foreground_of(output, requests, shadow, shadows)
        whole = foreground.joined(shadow) if shadow.requests else foreground
        clocks = self._clocks
        decode_only = widest <= clocks.decode_tokens and not clocks.any_before_first_token(
            scheduled.keys()
        )
        clocks.built(foreground, decode_only=decode_only)
        self._built.append(
            BuiltStep(
                output=output,
                built_s=now_s,
                whole=whole,
                foreground=foreground,
                shadow=shadow,
                decode_only=decode_only,
                carries_routed=clocks.any_routed(scheduled.keys()),
                predicted_s=self._step_time.predicted_s(whole),
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
        extra_s = 0.0
        if step.shadow.requests:
            extra_s = max(0.0, step_s - self._step_time.predicted_s(step.foreground))
        self._step_time.observe(step_s, step.whole)
        # A step of shadow work alone delayed nobody: it neither earns nor spends.
        if step.foreground.requests:
            self._controller.observe(step_s, step.decode_only, step.carries_routed, extra_s)
        return FinishedStep(step, step_s, self._controller.credit_s)


def _foreground_of(
    output: SchedulerOutput,
    requests: Mapping[str, Request],
    shadow: Batch,
    shadows: Sequence[Request],
) -> tuple[Batch, int]:
    """What the step carries of normal and routed requests, and the most tokens of one of them."""
    scheduled = output.num_scheduled_tokens
    context = sum(output.scheduled_cached_reqs.num_computed_tokens) - shadow.context_tokens
    for new in output.scheduled_new_reqs:
        context += new.num_computed_tokens
    count = len(scheduled) - shadow.requests
    tokens = output.total_num_scheduled_tokens - shadow.tokens
    pairs, widest = float(context + count), 1  # as if each had one token
    if tokens != count:
        shadow_ids = {request.request_id for request in shadows}
        for request_id, wide in scheduled.items():
            if wide > 1 and request_id not in shadow_ids:
                before = requests[request_id].num_computed_tokens - wide
                pairs += attended(wide, before) - attended(1, before)
                widest = max(widest, wide)
    return Batch(count, tokens, pairs, context), widest
