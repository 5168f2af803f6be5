"""The sensitivities as one picture: a panel per setting, the paper's printed values beside ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench.paper.figures import COLORS
from bench.paper.published import published
from bench.paper.sweeps import SWEEPS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from bench.paper.sensitivity import Point
    from bench.paper.sweeps import Sweep
    from bench.study.approaches import ApproachName

COLUMNS = 4
METRIC_LABELS = {
    "llm_latency_reduction": "LLM-call latency, reduction (%)",
    "switch_latency_reduction": "switch-call latency, reduction (%)",
    "unused_shadow_pct": "shadow tokens never used (%)",
}


def write_sensitivities(points: Sequence[Point], title: str, path: Path) -> None:
    shown = [sweep for sweep in SWEEPS if any(point.sweep == sweep.key for point in points)]
    rows = -(-len(shown) // COLUMNS)
    figure = Figure(figsize=(4.2 * COLUMNS, 3.1 * rows + 0.9), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, COLUMNS, squeeze=False).flat)
    for panel, sweep in zip(axes, shown, strict=False):
        _panel(panel, sweep, [point for point in points if point.sweep == sweep.key])
    for panel in axes[len(shown) :]:
        panel.set_visible(False)
    names = dict.fromkeys(name for sweep in shown for name in sweep.approaches)
    handles: list[Artist] = [
        Line2D([], [], color=COLORS[name], marker="o", label=str(name)) for name in names
    ]
    handles.append(
        Line2D([], [], color="#444444", marker="x", linestyle="dashed", label="the paper's text")
    )
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    figure.suptitle(title, fontsize=12)
    figure.savefig(path, dpi=110)


def _panel(panel: Axes, sweep: Sweep, points: Sequence[Point]) -> None:
    for name in sweep.approaches:
        _ours(panel, name, sweep, points)
        _paper(panel, name, sweep)
    panel.axvline(sweep.values.index(sweep.default), color="#aaaaaa", linestyle="dotted")
    panel.axhline(0, color="#888888", linewidth=0.8)
    panel.set_xticks(range(len(sweep.values)), [f"{value:g}" for value in sweep.values])
    panel.set_xlabel(sweep.label, fontsize=9)
    panel.set_ylabel(METRIC_LABELS[sweep.metric], fontsize=8)
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(axis="y", color="#dddddd", linewidth=0.6)


def _ours(panel: Axes, name: ApproachName, sweep: Sweep, points: Sequence[Point]) -> None:
    known = [point for point in points if point.approach == name and point.ours is not None]
    if not known:
        return
    at = [sweep.values.index(point.at) for point in known]
    means = [point.ours.mean for point in known if point.ours is not None]
    errors = [point.ours.standard_error or 0.0 for point in known if point.ours is not None]
    panel.errorbar(at, means, yerr=errors, color=COLORS[name], marker="o", markersize=4, capsize=2)


def _paper(panel: Axes, name: ApproachName, sweep: Sweep) -> None:
    told = [
        point
        for point in published().sensitivities
        if point.sweep == sweep.key and point.approach == name and point.at in sweep.values
    ]
    told.sort(key=lambda point: point.at)
    at = [sweep.values.index(point.at) for point in told]
    panel.plot(
        at, [point.value for point in told], color=COLORS[name], marker="x", linestyle="dashed",
        linewidth=0.9,
    )  # fmt: skip
