"""What is in flight on an engine: each normal and routed request's clock, and the smallest slack.

Nothing here may look at every request in every step: hundreds run, and a step is a few
milliseconds. So the routed requests and the TPOT SLOs in flight are counted as requests come and
go, and the deadlines of decoding requests are looked through only when the earliest one that is
known might bind. Decides nothing.

Host: engine.planning."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from policy.slack import SlackController, decode_due_s, prefill_slack_s
from policy.step_time import NO_BATCH, Batch, StepTimeModel
from policy.vocabulary import RequestClass

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

    from engine.marks import Marks

LONGEST_TRANSIT_S = 60.0
"""A front end's wall clock that is further off than this is not believed."""

_computed_tokens = attrgetter("num_computed_tokens")


@dataclass(slots=True)
class RequestClock:
    """Of one normal or routed request, on the engine's monotonic clock."""

    request: Request
    is_routed: bool
    arrival_s: float
    ttft_s: float
    """What was left of the TTFT SLO at `arrival_s`."""
    tpot_s: float


Decoding = tuple[float, float, list[int]]
"""A normal request after its first token: when that came, its TPOT SLO, and vLLM's own list of its
output, which it only ever appends to. A plain tuple is taken apart several times faster than a
named one, and here hundreds may be at once."""


class Foreground(NamedTuple):
    """The normal and routed requests in flight, as `StepLoad` wants them."""

    busy: bool = False
    carries_routed: bool = False
    min_tpot_s: float = inf
    min_slack_s: float = inf
    planned: Batch = NO_BATCH


class RequestClocks:
    """Of everything but shadows, from arrival to end."""

    def __init__(
        self,
        controller: SlackController,
        step_time: StepTimeModel,
        *,
        chunk_tokens: int,
        decode_tokens: int,
    ) -> None:
        """`chunk_tokens`: most tokens of a step. `decode_tokens`: most that a step has of a request
        that decodes, more than one with speculative decoding."""
        self.decode_tokens = decode_tokens
        self._controller = controller
        self._step_time = step_time
        self._chunk_tokens = chunk_tokens
        self._clocks: dict[str, RequestClock] = {}
        self._before_first: dict[str, RequestClock] = {}
        self._decoding: dict[str, Decoding] = {}
        self._routed: set[str] = set()
        self._tpots_s: Counter[float] = Counter()
        self._earliest_due_s = inf
        """No later than the earliest deadline in `_decoding`, none of which moves back."""
        self._tightest_id = ""
        """Whose deadline it was when they were last looked through."""
        self._margin = controller.params.margin
        self._steady: Batch | None = None
        """What the last step carried, if it only decoded and nothing has left since."""

    def arrived(self, request: Request, marks: Marks, now_s: float) -> float:
        """How long the request has waited in the engine's inbox."""
        # The request waited for the previous step in the engine's inbox; that wait is part of its
        # TTFT. Only this difference is taken from the wall clock.
        transit_s = time.time() - request.arrival_time
        transit_s = transit_s if 0 <= transit_s <= LONGEST_TRANSIT_S else 0.0
        slo = self._controller.params.slo
        clock = RequestClock(
            request=request,
            is_routed=marks.request_class is RequestClass.ROUTED,
            arrival_s=now_s - transit_s,
            ttft_s=slo.ttft_s if marks.ttft_budget_s is None else marks.ttft_budget_s,
            tpot_s=slo.tpot_s if marks.tpot_s is None else marks.tpot_s,
        )
        request_id = request.request_id
        self._clocks[request_id] = self._before_first[request_id] = clock
        self._tpots_s[clock.tpot_s] += 1
        if clock.is_routed:
            self._routed.add(request_id)
        return transit_s

    def forget(self, request_id: str) -> None:
        clock = self._clocks.pop(request_id, None)
        if clock is None:
            return
        self._steady = None
        self._before_first.pop(request_id, None)
        self._decoding.pop(request_id, None)
        self._routed.discard(request_id)
        self._tpots_s[clock.tpot_s] -= 1
        if not self._tpots_s[clock.tpot_s]:
            del self._tpots_s[clock.tpot_s]

    def emitted(self, output: SchedulerOutput, now_s: float) -> None:
        """vLLM has taken in the output of a step: who got a first token?"""
        if not self._before_first:
            return
        for request_id in self._before_first.keys() & output.num_scheduled_tokens.keys():
            clock = self._before_first[request_id]
            if clock.request.num_output_tokens:
                del self._before_first[request_id]
                self._decodes(request_id, clock, now_s)

    def _decodes(self, request_id: str, clock: RequestClock, now_s: float) -> None:
        # A routed request has no slack to lend. Of one whose input is streamed, the pauses are its
        # client's: no deadline says anything about it.
        if clock.is_routed or clock.request.resumable:
            return
        self._decoding[request_id] = (now_s, clock.tpot_s, clock.request._output_token_ids)
        due_s = decode_due_s(self._margin, clock.tpot_s, 0, now_s)
        self._earliest_due_s = min(self._earliest_due_s, due_s)

    # What a step carries, and what is in flight

    def built(self, foreground: Batch, *, decode_only: bool) -> None:
        """vLLM has built a step. Drafts may be rejected, so that nobody knows what follows them."""
        self._steady = foreground if decode_only and self.decode_tokens == 1 else None

    def any_routed(self, request_ids: Collection[str]) -> bool:
        return bool(self._routed) and not self._routed.isdisjoint(request_ids)

    def any_before_first_token(self, request_ids: Collection[str]) -> bool:
        before = self._before_first
        return bool(before) and not before.keys().isdisjoint(request_ids)

    def foreground(
        self,
        running: Sequence[Request],
        prefills: Sequence[Request],
        token_budget: int,
        now_s: float,
        in_flight_s: float,
    ) -> Foreground:
        """What runs (`prefills`: those of them with more of a prompt to come), and what vLLM is
        about to schedule of it. Nothing waits, or its clocks would be taken for those of what
        runs."""
        if not running:
            return Foreground()
        planned = self._planned_decodes(running, prefills)
        computed: dict[str, int] = {}
        for request in prefills:
            context = request.num_computed_tokens
            tokens = max(0, min(request.num_tokens - context, token_budget - planned.tokens))
            if tokens:
                planned = planned.plus(tokens, context)
            computed[request.request_id] = context + tokens
        min_tpot_s = min(self._tpots_s)
        min_slack_s = inf
        if self._controller.uses_slack:
            enough_s = self._controller.cap_s(min_tpot_s, busy=True) + in_flight_s
            hopeless_s = self._step_time.predicted_s(planned) + in_flight_s
            due_s = self._due_s(now_s + hopeless_s, now_s + enough_s)
            min_slack_s = min(due_s - now_s, self._prefill_slack_s(computed, now_s))
        return Foreground(True, bool(self._routed), min_tpot_s, min_slack_s, planned)

    def _planned_decodes(self, running: Sequence[Request], prefills: Sequence[Request]) -> Batch:
        count, each = len(running) - len(prefills), self.decode_tokens
        steady = self._steady
        if steady is not None and steady.requests == count == len(running):
            context = steady.context_tokens + steady.tokens
        else:
            context = sum(map(_computed_tokens, running)) - sum(map(_computed_tokens, prefills))
        pairs = each * (context + count * (each + 1) / 2)  # the sum of `attended`
        return Batch(count, count * each, pairs, context)

    def _prefill_slack_s(self, computed: Mapping[str, int], now_s: float) -> float:
        """The smallest of those without a first token. `computed`: of some of them, how far they
        are after this step; the prompts of the others are in flight as a whole."""
        least_s, margin = inf, self._controller.params.margin
        for request_id, clock in self._before_first.items():
            if clock.is_routed:
                continue
            prompt_tokens = clock.request.num_tokens
            context = computed.get(request_id, prompt_tokens)
            rest_s = self._step_time.prefill_s(prompt_tokens - context, context, self._chunk_tokens)
            slack_s = prefill_slack_s(margin, clock.ttft_s, now_s, clock.arrival_s, rest_s)
            least_s = min(least_s, slack_s)
        return least_s

    def _due_s(self, hopeless_s: float, enough_s: float) -> float:
        """The earliest deadline; or, if that is after `enough_s`, some time between the two; or, if
        not even what is planned is done by it (`hopeless_s`), perhaps another one before that."""
        margin = self._controller.params.margin
        if margin == self._margin:
            if self._earliest_due_s >= enough_s:
                return self._earliest_due_s
            tightest_due_s = self._tightest_due_s()
            if tightest_due_s <= hopeless_s:
                return tightest_due_s
        self._margin = margin
        return self._look_through()

    def _tightest_due_s(self) -> float:
        tightest = self._decoding.get(self._tightest_id)
        if tightest is None:
            return inf
        first_token_s, tpot_s, output_tokens = tightest
        return decode_due_s(self._margin, tpot_s, len(output_tokens) - 1, first_token_s)

    def _look_through(self) -> float:
        kept = 1 - self._margin
        # `decode_due_s` of each, written out: hundreds of calls would cost more than the sums.
        dues_s = [
            first_token_s + kept * tpot_s * len(output_tokens)
            for first_token_s, tpot_s, output_tokens in self._decoding.values()
        ]
        self._earliest_due_s = min(dues_s, default=inf)
        if dues_s:
            tightest = dues_s.index(self._earliest_due_s)
            self._tightest_id = next(islice(self._decoding, tightest, None))
        return self._earliest_due_s
