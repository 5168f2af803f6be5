"""The picture of a trace: what each iteration carried, how long it took against its limits, and why
there was no more shadow work in it.

Few iterations are drawn one by one; many are drawn in bins, with the range of each bin, so that ten
seconds and ten minutes are both readable. Host: bench.cli (`trace plot`)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from engine.trace import CHANGED
from policy.slack import SlackReason

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from bench.trace_read import Trace

    Numbers = NDArray[np.float64]

MOST_SINGLE = 1000
"""More iterations than this are drawn in bins."""
BINS = 300
MOST_LABELS = 8
DECODE, PREFILL, SHADOW, BUDGET = "#4c6a92", "#9aa5b1", "#d97706", "#111827"
CAP, SLO, WAIT = "#b91c1c", "#7c3aed", "#0f766e"
OUTCOMES = {
    SlackReason.GRANTED: "#d97706",
    SlackReason.NO_JOB: "#e5e7eb",
    SlackReason.OFF: "#9ca3af",
    SlackReason.FOREGROUND_WAITING: "#1f4e79",
    SlackReason.ADMISSION_BLOCKED: "#60a5fa",
    SlackReason.NO_SLACK: "#b91c1c",
    SlackReason.NO_CREDIT: "#f87171",
    SlackReason.ROUTED_IN_BATCH: "#7c3aed",
    SlackReason.BELOW_MINIMUM: "#0f766e",
    SlackReason.NO_SHADOW_KV: "#65a30d",
    SlackReason.UNLIKELY: "#a16207",
}
OTHER = "#000000"


@dataclass(frozen=True, slots=True)
class Spans:
    """What is drawn side by side: iterations, or bins of them."""

    left_s: Numbers
    width_s: Numbers
    members: list[slice]
    binned: bool

    @property
    def middle_s(self) -> Numbers:
        return self.left_s + self.width_s / 2

    def each(self, values: Numbers, reduce: Callable[[Numbers], Any]) -> Numbers:
        """One number per span, of the values of its iterations that are numbers."""
        parts = [values[member] for member in self.members]
        parts = [part[~np.isnan(part)] for part in parts]
        return np.array([reduce(part) if part.size else np.nan for part in parts])


def write_png(trace: Trace, path: Path) -> None:
    """Raises OSError."""
    # The canvas is ours: pyplot would keep global state and may look for a display.
    figure = Figure(figsize=(14, 10), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(4, 1, sharex=True, height_ratios=[2, 3, 4, 2])
    spans = spans_of(trace)
    _requests(panels[0], trace, spans)
    _tokens(panels[1], trace, spans)
    _times(panels[2], trace, spans)
    _outcomes(panels[3], trace, spans)
    _changes(list(panels), trace)
    for panel in panels:
        panel.legend(loc="upper left", bbox_to_anchor=(1.005, 1.0), frameon=False, fontsize=9)
        panel.margins(x=0)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_xlim(spans.left_s[0], spans.left_s[-1] + spans.width_s[-1])
    panels[-1].set_xlabel("time since the trace began (s)")
    header = trace.header
    how = f"in {BINS} bins" if spans.binned else "one by one"
    figure.suptitle(
        f"{header.instance} ({header.role}, {header.model}, {header.controller}): "
        f"{len(trace.steps)} iterations, drawn {how}"
    )
    figure.savefig(path, dpi=110)


def spans_of(trace: Trace) -> Spans:
    end_s, step_s = _column(trace, "t_s"), _column(trace, "step_s")
    if len(end_s) <= MOST_SINGLE:
        return Spans(end_s - step_s, step_s, [slice(i, i + 1) for i in range(len(end_s))], False)
    edges = np.linspace(end_s[0] - step_s[0], end_s[-1], BINS + 1)
    return Spans(edges[:-1], np.diff(edges), _members(end_s, edges), True)


def _members(end_s: Numbers, edges: Numbers) -> list[slice]:
    places = np.searchsorted(end_s, edges, side="right")
    places[0] = 0
    return [slice(int(low), int(high)) for low, high in pairwise(places)]


def _column(trace: Trace, name: str) -> Numbers:
    return np.array([getattr(step, name) for step in trace.steps], dtype=float)


def _requests(axes: Axes, trace: Trace, spans: Spans) -> None:
    for name, label, color, style in (
        ("decode_requests", "requests that decode", DECODE, "-"),
        ("waiting_requests", "requests that wait", CAP, "-"),
        ("queued_jobs", "shadow jobs", SHADOW, "--"),
    ):
        values = spans.each(_column(trace, name), np.mean)
        axes.step(spans.left_s, values, style, where="post", color=color, label=label, lw=1.2)
    axes.set_ylabel("number")
    axes.set_ylim(bottom=0)


def _tokens(axes: Axes, trace: Trace, spans: Spans) -> None:
    below = np.zeros(len(spans.left_s))
    for name, label, color in (
        ("decode_tokens", "decode", DECODE),
        ("prefill_tokens", "prefill", PREFILL),
        ("shadow_tokens", "shadow", SHADOW),
    ):
        values = np.nan_to_num(spans.each(_column(trace, name), np.mean))
        _bars(axes, spans, values, below, color, label)
        below += values
    axes.set_ylabel("tokens per iteration" + ("\n(mean of a bin)" if spans.binned else ""))


def _times(axes: Axes, trace: Trace, spans: Spans) -> None:
    step_s, tokens = _column(trace, "step_s"), _column(trace, "shadow_tokens")
    caps_s, budget_s = np.array(trace.caps_s()), _column(trace, "budget_s")
    budget_s[budget_s == 0] = np.nan
    top_s = 1.25 * max(float(np.percentile(step_s, 99.5)), float(caps_s[tokens > 0].max(initial=0)))
    for label, color, among in (
        ("iteration without shadow", PREFILL, tokens == 0),
        ("iteration with shadow", SHADOW, tokens > 0),
    ):
        _durations(axes, spans, np.where(among, step_s, np.nan), color, label)
    budgets = spans.each(budget_s, np.median)
    right_s = spans.left_s + spans.width_s
    limits = spans.each(caps_s, np.max)
    axes.hlines(limits, spans.left_s, right_s, color=CAP, lw=2.5, alpha=0.5, label="cap")
    axes.hlines(budgets, spans.left_s, right_s, color=BUDGET, lw=1, label="budget", zorder=4)
    _arrivals(axes, trace, top_s)
    slo_s = trace.header.slo_tpot_s
    slo_fits = slo_s <= 2 * top_s
    if slo_fits:
        top_s = max(top_s, 1.05 * slo_s)
        axes.axhline(slo_s, color=SLO, lw=1.2, ls=":", label=f"TPOT SLO {slo_s:g} s")
    else:
        axes.plot([], [], color=SLO, ls=":", label=f"TPOT SLO {slo_s:g} s (above)")
    beyond = step_s > top_s
    if beyond.any():
        ends = _column(trace, "t_s")[beyond]
        label = f"{int(beyond.sum())} beyond, longest {step_s.max():.2f} s"
        axes.plot(ends, np.full(len(ends), 0.98 * top_s), "^", color=CAP, ms=6, label=label)
    axes.set_ylim(0, top_s)
    axes.set_ylabel("seconds" + ("\n(bar: range of a bin)" if spans.binned else ""))


def _durations(axes: Axes, spans: Spans, step_s: Numbers, color: str, label: str) -> None:
    if np.isnan(step_s).all():
        return
    axes.plot(spans.middle_s, spans.each(step_s, np.median), ".", color=color, ms=4, label=label)
    if spans.binned:
        low, high = spans.each(step_s, np.min), spans.each(step_s, np.max)
        axes.vlines(spans.middle_s, low, high, color=color, alpha=0.35, lw=1.5)


def _arrivals(axes: Axes, trace: Trace, top_s: float) -> None:
    waits = [(step.t_s - step.step_s, wait) for step in trace.steps for wait, _ in step.arrivals]
    if waits:
        times, seconds = zip(*waits, strict=True)
        shown = np.minimum(seconds, 0.98 * top_s)
        axes.plot(times, shown, "x", color=WAIT, ms=4, label="wait of an arrival")


def _outcomes(axes: Axes, trace: Trace, spans: Spans) -> None:
    reasons = [step.reason or SlackReason.NO_JOB.value for step in trace.steps]
    known = {reason.value: color for reason, color in OUTCOMES.items()}
    below = np.zeros(len(spans.left_s))
    for name in [*known, *sorted(set(reasons) - known.keys())]:
        among = np.array([reason == name for reason in reasons], dtype=float)
        if among.any():
            shares = np.nan_to_num(spans.each(among, np.mean))
            color, label = known.get(name, OTHER), name.replace("_", " ")
            _bars(axes, spans, shares, below, color, label)
            below += shares
    axes.set_ylim(0, 1)
    axes.set_ylabel("share of plans\nby outcome")


def _bars(
    axes: Axes, spans: Spans, values: Numbers, below: Numbers, color: str, label: str
) -> None:
    axes.bar(
        spans.left_s, values, spans.width_s, bottom=below, align="edge", color=color, label=label
    )


def _changes(panels: list[Axes], trace: Trace) -> None:
    begin_s = trace.steps[0].t_s - trace.steps[0].step_s
    events = [e for e in trace.events if e.event == CHANGED and e.t_s >= begin_s]
    for event in events:
        for panel in panels:
            panel.axvline(event.t_s, color=BUDGET, lw=0.8, ls=(0, (1, 2)))
    for number, event in enumerate(events[:MOST_LABELS]):
        text = ", ".join(f"{name}={value}" for name, value in event.changes.items())
        panels[0].annotate(
            text if len(text) <= 40 else text[:39] + "…",
            (event.t_s, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(3, 2 + 11 * (number % 3)),
            textcoords="offset points",
            fontsize=8,
        )
