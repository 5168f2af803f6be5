"""What one engine's scheduler has seen of its steps: counters for a scrape, lines for a trace.

Told by the scheduler, asked by the exporter; decides nothing.

Hosts: engine.visible, engine.scheduler, engine.connector."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from engine.control import differences
from engine.counts import Behind, EngineCounts
from engine.trace import CHANGED, TraceEvent, TraceHeader, TraceStep, TraceWriter
from policy.slack import cap_s
from policy.vocabulary import Role

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.params import EngineParams
    from engine.timing import FinishedStep
    from engine.trace import TracePull

SWITCH_WAIT_S = 0.25
"""Between two steps; a disk that is slower finishes the old trace behind them."""


class Observed:
    """One per scheduler."""

    def __init__(self, block_size: int, batches_in_flight: int) -> None:
        self.counts = EngineCounts()
        self._block_size = block_size
        self._batches_in_flight = batches_in_flight
        self._trace: TraceWriter | None = None
        self._arrivals: list[tuple[float, str]] = []
        self._last_end_s = float("-inf")
        self._last_carried_shadow = False

    def finished(
        self, finished: FinishedStep, now_s: float, shadow_state: Callable[[], tuple[int, int]]
    ) -> None:
        """A step has come back. `shadow_state` (queued jobs, KV blocks held) is only asked while a
        trace is written."""
        counts, grant, step_s = self.counts, finished.step.grant, finished.step_s
        shadow_tokens, predicted_s = finished.step.shadow.tokens, finished.step.predicted_s
        self._last_end_s = now_s
        self._last_carried_shadow = shadow_tokens > 0
        if shadow_tokens:
            counts.shadow_tokens += shadow_tokens
            counts.shadow_step_s.add(step_s)
        else:
            counts.plain_step_s.add(step_s)
        if grant.budget_s > 0:
            counts.budget_s.add(grant.budget_s)
        if predicted_s > 0:
            counts.predicted_s.add(predicted_s)
            counts.actual_over_predicted.add(step_s / predicted_s)
        if self._trace is not None:
            self._trace.add(self._line(finished, self._trace.since_start_s(now_s), *shadow_state()))

    def arrived(self, wait_s: float, now_s: float) -> None:
        """A normal or routed request came in."""
        behind = Behind.NOTHING
        if now_s - wait_s < self._last_end_s:
            behind = Behind.SHADOW if self._last_carried_shadow else Behind.FOREGROUND
        self.counts.arrival_wait_s[behind].add(wait_s)
        if self._trace is not None:
            self._arrivals.append((round(wait_s, 6), behind.value))

    def pulled(self, line: TracePull) -> None:
        """A pull began or ended; the time in it is the engine's."""
        if self._trace is not None:
            t_s = self._trace.since_start_s(line.t_s)
            duration_s = round(line.duration_s, 6)
            self._trace.add(msgspec.structs.replace(line, t_s=t_s, duration_s=duration_s))

    def trace_to(self, params: EngineParams, cap_blocks: int, now_s: float) -> None:
        """Starts the trace that the parameters name, or ends the present one; raises TraceFailed,
        and then nothing has changed."""
        trace = None
        if params.trace_path:
            header = self._header(params, cap_blocks, now_s)
            path = Path(params.trace_path)
            trace = TraceWriter(path, header, params.trace_max_bytes, self.counts.trace)
        self.close("switched off", SWITCH_WAIT_S)
        self._trace = trace

    def changed(self, params: EngineParams, before: EngineParams, now_s: float) -> None:
        """The parameters are others from the next step on."""
        changes = differences(params, before)
        changes.pop("trace_path", None)
        if self._trace is not None and changes:
            self._trace.add(
                TraceEvent(
                    t_s=self._trace.since_start_s(now_s),
                    event=CHANGED,
                    cap_s=_cap_s(params, idle=False),
                    idle_cap_s=_cap_s(params, idle=True),
                    changes=changes,
                )
            )

    def close(self, text: str, wait_s: float) -> None:
        """Ends the trace, if one is written, and waits at most so long for the disk."""
        if self._trace is not None:
            self._trace.close(text, wait_s)
            self._trace = None
        self._arrivals.clear()

    def _line(
        self, finished: FinishedStep, t_s: float, queued_jobs: int, shadow_blocks: int
    ) -> TraceStep:
        step, grant = finished.step, finished.step.grant
        decodes = decode_tokens = step.foreground.requests
        if step.decode_only:
            decode_tokens = step.foreground.tokens
        else:
            # Spares a look at every request: a prompt's last single token passes for a decode.
            ones = list(step.output.num_scheduled_tokens.values()).count(1)
            decodes = decode_tokens = min(ones, decodes)
        arrivals, self._arrivals = self._arrivals, []
        return TraceStep(
            t_s=t_s,
            step_s=round(finished.step_s, 6),
            predicted_s=round(step.predicted_s, 6),
            budget_s=round(grant.budget_s, 6),
            reason=grant.reason.value,
            waiting_requests=step.waiting_requests,
            decode_requests=decodes,
            decode_tokens=decode_tokens,
            prefill_tokens=step.foreground.tokens - decode_tokens,
            shadow_tokens=step.shadow.tokens,
            queued_jobs=queued_jobs,
            shadow_blocks=shadow_blocks,
            credit_s=round(finished.credit_s, 6),
            carried_routed=step.carries_routed,
            arrivals=arrivals,
        )

    def _header(self, params: EngineParams, cap_blocks: int, now_s: float) -> TraceHeader:
        return TraceHeader(
            instance=params.instance,
            model=params.model,
            role=params.role.value,
            controller=params.controller.value,
            cap_s=_cap_s(params, idle=False),
            idle_cap_s=_cap_s(params, idle=True),
            slo_ttft_s=params.slo_ttft_s,
            slo_tpot_s=params.slo_tpot_s,
            beta=params.beta,
            block_size=self._block_size,
            cap_blocks=cap_blocks,
            batches_in_flight=self._batches_in_flight,
            start_unix_s=time.time(),
            start_monotonic_s=now_s,
        )


def _cap_s(params: EngineParams, *, idle: bool) -> float:
    prefill = params.role is Role.PREFILL
    return cap_s(params.beta, params.slo_tpot_s, params.iteration_cap_s, prefill, idle)
