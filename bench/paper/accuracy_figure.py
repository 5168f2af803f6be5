"""Figure 7 as ours: a panel per benchmark, accuracy over the cost of the tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.paper.accuracy import Choice
from bench.paper.published import published

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from bench.paper.accuracy import Spot

STYLES = {
    Choice.CHEAP: ("#9e9e9e", "v"),
    Choice.DEAR: ("#4d4d4d", "^"),
    Choice.ROUTER: ("#b2182b", "o"),
    Choice.SHADOW: ("#1f4e79", "s"),
    Choice.ORACLE: ("#e6550d", "D"),
}


def cut_pct(spots: Mapping[Choice, Spot]) -> float | None:
    """What shadow takes off the router's bill."""
    before, now = spots[Choice.ROUTER].cost_share, spots[Choice.SHADOW].cost_share
    return None if before is None or now is None else 100 * (1 - now.mean / before.mean)


def by_benchmark(spots: Sequence[Spot]) -> dict[str, dict[Choice, Spot]]:
    found: dict[str, dict[Choice, Spot]] = {}
    for spot in spots:
        found.setdefault(spot.benchmark, {})[spot.choice] = spot
    return found


def write_accuracy(spots: Sequence[Spot], title: str, path: Path) -> None:
    panels = by_benchmark(spots)
    # The canvas is ours: pyplot would keep global state and may look for a display.
    figure = Figure(figsize=(3.9 * len(panels), 4.3), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(1, len(panels), squeeze=False).flat)
    for panel, (benchmark, found) in zip(axes, panels.items(), strict=True):
        _panel(panel, benchmark, found)
    axes[0].set_ylabel("accuracy (% of the calls' score)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=110)


def _panel(panel: Axes, benchmark: str, spots: Mapping[Choice, Spot]) -> None:
    for choice, spot in spots.items():
        if spot.accuracy_pct is None or spot.cost_share is None:
            continue
        color, marker = STYLES[choice]
        panel.errorbar(
            spot.cost_share.mean,
            spot.accuracy_pct.mean,
            xerr=spot.cost_share.standard_error or 0.0,
            color=color,
            marker=marker,
            markersize=8,
            linestyle="",
            capsize=2,
            label=str(choice),
        )
    cut = cut_pct(spots)
    if cut is not None:
        told = {one.benchmark: one.cost_cut_pct for one in published().cost_cuts}
        panel.set_title(
            f"{benchmark}\nbill with shadow {-cut:+.0f}% (paper {-told[benchmark]:+g}%)",
            fontsize=10,
        )
    panel.set_xlim(left=0)
    panel.margins(y=0.25)
    panel.set_xlabel("token cost / always the dearer model")
    panel.spines[["top", "right"]].set_visible(False)
    panel.grid(color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)
