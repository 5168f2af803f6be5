"""A trace in a few lines of text: did iterations with shadow tokens keep their cap, who waited for
them, and why there was no more shadow work. Host: bench.trace_plot."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from engine.counts import Behind
from policy.slack import SlackReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.trace_read import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """In seconds and tokens; None where there was nothing to measure."""

    span_s: float
    iterations: int
    shadow_iterations: int
    shadow_tokens: int
    prefill_tokens: int
    decode_tokens: int
    shadow_step_s: list[float]
    """Sorted; of iterations that carried shadow tokens."""
    over_cap_shares: list[float]
    """Sorted; duration over the cap in force, of the same iterations."""
    waits_s: dict[Behind, list[float]]
    """Sorted; of arriving requests, by what ran."""
    outcomes: dict[str, int]
    """Plans with a job, by reason."""


def summary_of(trace: Trace) -> Summary:
    steps = trace.steps
    carrying = [
        (step, cap) for step, cap in zip(steps, trace.caps_s(), strict=True) if step.shadow_tokens
    ]
    waits: dict[Behind, list[float]] = {behind: [] for behind in Behind}
    for step in steps:
        for wait_s, behind in step.arrivals:
            waits[Behind(behind)].append(wait_s)
    return Summary(
        span_s=steps[-1].t_s - steps[0].t_s + steps[0].step_s if steps else 0.0,
        iterations=len(steps),
        shadow_iterations=len(carrying),
        shadow_tokens=sum(step.shadow_tokens for step in steps),
        prefill_tokens=sum(step.prefill_tokens for step in steps),
        decode_tokens=sum(step.decode_tokens for step in steps),
        shadow_step_s=sorted(step.step_s for step, _ in carrying),
        over_cap_shares=sorted(step.step_s / cap for step, cap in carrying if cap),
        waits_s={behind: sorted(values) for behind, values in waits.items()},
        outcomes=dict(Counter(step.reason for step in steps if step.reason).most_common()),
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Nearest rank: a value that occurred."""
    return ordered[max(0, ceil(percent / 100 * len(ordered)) - 1)]


def text_of(summary: Summary, trace: Trace) -> str:
    header = trace.header
    lines = [
        f"{header.instance} ({header.role}, {header.model}): {summary.span_s:.1f} s, "
        f"{summary.iterations} iterations, {summary.shadow_iterations} with shadow tokens",
        f"tokens: {summary.shadow_tokens} shadow, {summary.prefill_tokens} prefill, "
        f"{summary.decode_tokens} decode",
        _steps_text(summary),
        *(_wait_text(summary, behind) for behind in Behind if summary.waits_s[behind]),
        _outcomes_text(summary),
    ]
    ends = [f"{event.event}: {event.text}" for event in trace.events if event.text]
    return "\n".join([*lines, *ends, *([f"note: {trace.note}"] if trace.note else [])])


def _steps_text(summary: Summary) -> str:
    if not summary.shadow_step_s:
        return "no iteration carried shadow tokens"
    text = f"iterations with shadow tokens: {_spread(summary.shadow_step_s)}"
    if not summary.over_cap_shares:
        return text
    p99, largest = percentile(summary.over_cap_shares, 99), summary.over_cap_shares[-1]
    return f"{text}; of their cap p99 {p99:.0%}, max {largest:.0%}"


def _wait_text(summary: Summary, behind: Behind) -> str:
    words = {
        Behind.SHADOW: "for an iteration with shadow tokens",
        Behind.FOREGROUND: "for another iteration",
        Behind.NOTHING: "with nothing running",
    }
    waits = summary.waits_s[behind]
    return f"arrivals that waited {words[behind]}: {len(waits)}, {_spread(waits)}"


def _spread(ordered: Sequence[float]) -> str:
    p50, p99 = percentile(ordered, 50), percentile(ordered, 99)
    return f"p50 {1e3 * p50:.1f} ms, p99 {1e3 * p99:.1f} ms, max {1e3 * ordered[-1]:.1f} ms"


def _outcomes_text(summary: Summary) -> str:
    waiting = {name: n for name, n in summary.outcomes.items() if name != SlackReason.NO_JOB.value}
    if not waiting:
        return "no shadow job was ever waiting"
    total = sum(waiting.values())
    shares = ", ".join(f"{name} {count / total:.1%}" for name, count in waiting.items())
    return f"iterations planned with a shadow job: {total}: {shares}"
