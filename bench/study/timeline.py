"""The picture of one run: what each pool had to do at each moment, and the calls of some sessions.

Counts are what the times of the requests say, on a grid; a request waits until it is admitted, then
prefills until its first token, then decodes (a transfer included) until it is finished."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from bench.sim.outcome import Outcome

GRID = 600
SHOWN_SESSIONS = 28
SHOWN_S = 150.0
"""Of the calls: over a whole run each of them is a hair."""
STATES = ("waiting", "prefill", "decode")
STATE_COLORS = {"waiting": "#b2182b", "prefill": "#e08214", "decode": "#9ecae1"}
MODEL_COLORS = ("#1f4e79", "#5a8f3c", "#8c6bb1", "#b35900", "#4d4d4d")
TTFT_COLOR = "#e6550d"


def write_timeline(
    outcome: Outcome,
    models: Sequence[str],
    from_s: float,
    until_s: float,
    title: str,
    path: Path,
) -> None:
    """Load from the begin to `until_s`, calls from `from_s` on."""
    # The canvas is ours: pyplot would keep global state and may look for a display.
    figure = Figure(figsize=(13, 2.1 * len(models) + 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    heights = [2.1] * len(models) + [4.2]
    panels = figure.subplots(len(models) + 1, 1, height_ratios=heights, squeeze=False)
    axes = list(panels.flat)
    for number, model in enumerate(models):
        _load(axes[number], outcome, number, until_s)
        axes[number].set_title(f"{model}: requests at its instances", fontsize=10, loc="left")
        axes[number].set_xlim(0, until_s)
    shown_s = (from_s, min(until_s, from_s + SHOWN_S))
    for panel in axes[:-1]:
        panel.axvspan(*shown_s, color="#eeeeee", zorder=0)
    _sessions(axes[-1], outcome, models, shown_s)
    axes[-1].set_xlim(*shown_s)
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("simulated time (s)")
    handles: list[Artist] = [Patch(color=STATE_COLORS[name], label=name) for name in STATES]
    axes[0].legend(handles=handles, loc="upper right", ncols=3, fontsize=8, framealpha=0.9)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=120)


def in_state(outcome: Outcome, wanted: np.ndarray, at_s: np.ndarray) -> dict[str, np.ndarray]:
    """How many of the wanted requests are in each state at each time."""
    borders = {
        "waiting": (outcome.arrival_s, outcome.admitted_s),
        "prefill": (outcome.admitted_s, outcome.first_token_s),
        "decode": (outcome.first_token_s, outcome.finished_s),
    }
    return {
        name: _up_to(begin_s[wanted], at_s) - _up_to(end_s[wanted], at_s)
        for name, (begin_s, end_s) in borders.items()
    }


def _up_to(times_s: np.ndarray, at_s: np.ndarray) -> np.ndarray:
    count: np.ndarray = np.searchsorted(np.sort(times_s), at_s, side="right")
    return count


def _load(panel: Axes, outcome: Outcome, model: int, until_s: float) -> None:
    at_s = np.linspace(0, until_s, GRID)
    counts = in_state(outcome, outcome.model == model, at_s)
    order = STATES[::-1]
    panel.stackplot(
        at_s,
        *(counts[name] for name in order),
        colors=[STATE_COLORS[name] for name in order],
        linewidth=0,
    )
    panel.set_ylim(bottom=0)
    panel.grid(axis="y", color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)


def _sessions(
    panel: Axes, outcome: Outcome, models: Sequence[str], shown_s: tuple[float, float]
) -> None:
    """A row per session; the first part of a call's bar is its time to the first token."""
    from_s, until_s = shown_s
    seen = (outcome.session >= 0) & (outcome.finished_s > from_s) & (outcome.arrival_s < until_s)
    known = np.unique(outcome.session[seen])
    step = max(1, -(-len(known) // SHOWN_SESSIONS))
    shown = known[::step]
    for row, session in enumerate(shown):
        for call in np.flatnonzero(seen & (outcome.session == session)):
            _call(panel, outcome, int(call), row)
    panel.set_ylim(len(shown), -1)
    panel.set_yticks([])
    of = f"one in {step} of {len(known)} sessions" if step > 1 else f"{len(known)} sessions"
    panel.set_title(f"calls of {of}, by model, in the grey part", fontsize=10, loc="left")
    handles: list[Artist] = [
        Patch(color=MODEL_COLORS[number], label=model) for number, model in enumerate(models)
    ]
    handles.append(Patch(color=TTFT_COLOR, label="time to the first token"))
    handles.append(Line2D([], [], color="black", marker="v", linestyle="", label="switch call"))
    panel.legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=7, fontsize=8,
        frameon=False,
    )  # fmt: skip


def _call(panel: Axes, outcome: Outcome, call: int, row: int) -> None:
    arrival_s, first_s = float(outcome.arrival_s[call]), float(outcome.first_token_s[call])
    finished_s = float(outcome.finished_s[call])
    if not np.isfinite(finished_s):
        return
    color = MODEL_COLORS[int(outcome.model[call])]
    panel.barh(row, finished_s - first_s, left=first_s, height=0.7, color=color, linewidth=0)
    panel.barh(row, first_s - arrival_s, left=arrival_s, height=0.7, color=TTFT_COLOR, linewidth=0)
    if outcome.is_switch[call]:
        panel.plot(arrival_s, row - 0.55, marker="v", color="black", markersize=3)
