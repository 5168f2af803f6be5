"""The paper's figures as ours, with the paper's value as a black mark where its text gives one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bench.paper.experiments import CODING, ClusterKind
from bench.paper.tables import BENCHMARKS, CODING_GROUP, CONTEXT_BINS, SIZE_BINS
from bench.study.approaches import ApproachName

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from bench.paper.tables import Row

COLORS = {
    ApproachName.HOST_TIER: "#bdbdbd",
    ApproachName.PREDICTIVE: "#8fb08c",
    ApproachName.HARVEST: "#9ecae1",
    ApproachName.HARVEST_SLO: "#5b8fbf",
    ApproachName.HARVEST_SLO_HOST: "#1f4e79",
    ApproachName.DEDICATED: "#8c6bb1",
    ApproachName.ORACLE: "#fdae6b",
    ApproachName.ORACLE_HOST: "#e6550d",
    ApproachName.EAGER: "#b2182b",
}
LADDER = (
    ("switch_latency_reduction", "switch-call latency, reduction (%)"),
    ("switch_ttft_reduction", "switch-call TTFT, reduction (%)"),
    ("llm_latency_reduction", "LLM-call latency, reduction (%)"),
    ("token_cost_reduction", "token cost, reduction (%)"),
    ("hit_pct", "prefix hit rate, all calls (%)"),
    ("switch_hit_pct", "prefix hit rate, switch calls (%)"),
)
OVERHEADS = (
    ("prefill_throughput_change", "prefill tokens, shadow included (%)"),
    ("energy_per_good_change", "energy per good request (%), power assumed"),
    ("slo_attainment_points", "normal requests within SLOs (points)"),
    ("unused_shadow_pct", "shadow tokens never used (%)"),
)
GROUPS = ("xRouteBench", "FusionBench", "Router-R1", BENCHMARKS, CODING_GROUP)
MARK: dict[str, Any] = {
    "color": "black",
    "marker": "_",
    "markersize": 11,
    "markeredgewidth": 2.0,
    "linestyle": "",
}
MARK_LABEL = "the paper's text"


OUT_OF_SCALE = (ApproachName.EAGER,)
"""The paper's figures leave it out. Here its bar is cut where the others end, and is labelled."""


class Bar(NamedTuple):
    name: ApproachName
    at: float
    mean: float
    lowest: float
    """With its error and the paper's mark."""
    highest: float


class Chart:
    """Rows, looked up by what a bar is."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = {(row.metric, row.group, row.cluster, row.approach): row for row in rows}
        self.approaches = [
            name
            for name in COLORS
            if any(row.approach == name and row.ours is not None for row in rows)
        ]

    def row(self, metric: str, group: str, cluster: str, approach: str) -> Row | None:
        return self._rows.get((metric, group, cluster, approach))


def write_ladder(rows: Sequence[Row], cluster: ClusterKind, title: str, path: Path) -> None:
    """Figures 4 and 5 (and 8d for a disaggregated cluster): the approaches, by benchmark."""
    figure, axes = _figure(3, 2, (14, 11.5))
    chart = Chart([row for row in rows if row.cluster == cluster])
    for panel, (metric, label) in zip(axes, LADDER, strict=True):
        _bars(panel, chart, metric, cluster, GROUPS)
        panel.set_title(label, fontsize=11, loc="left")
    _finish(figure, chart.approaches, title, path)


def write_overheads(rows: Sequence[Row], title: str, path: Path) -> None:
    """Figure 8: what the shadow work costs, colocated and disaggregated, over all pairs."""
    figure, axes = _figure(2, 2, (13, 8))
    chart = Chart(rows)
    for panel, (metric, label) in zip(axes, OVERHEADS, strict=True):
        width = 0.86 / max(1, len(chart.approaches))
        drawn = [
            _bar(panel, chart.row(metric, "all", cluster, name), place, number, width, chart)
            for place, cluster in enumerate(ClusterKind)
            for number, name in enumerate(chart.approaches)
        ]
        cut(panel, drawn)
        panel.set_xlim(-0.5, len(ClusterKind) - 0.5)
        panel.set_xticks(range(len(ClusterKind)), ["colocated", "prefill and decode apart"])
        panel.set_title(label, fontsize=11, loc="left")
    _finish(figure, chart.approaches, title, path)


def write_origins(rows: Sequence[Row], title: str, path: Path) -> None:
    """Figure 9a to 9c: where the benefit comes from."""
    figure, axes = _figure(2, 2, (13, 8))
    chart = Chart([row for row in rows if row.cluster == ClusterKind.COLOCATED])
    sizes = tuple(group for group, _, _ in SIZE_BINS)
    contexts = tuple(group for group, _, _ in CONTEXT_BINS)
    for panel, metric, groups, label in (
        (
            axes[0],
            "switch_latency_reduction",
            sizes,
            "switch-call latency by target, reduction (%)",
        ),
        (axes[1], "switch_cost_reduction", sizes, "switch-call cost by target, reduction (%)"),
        (axes[2], "switch_latency_reduction", contexts, "switch-call latency by context (%)"),
        (axes[3], "switch_cost_reduction", contexts, "switch-call cost by context (%)"),
    ):
        _bars(panel, chart, metric, ClusterKind.COLOCATED, groups)
        shown = [name.removeprefix("target ").removeprefix("context ") for name in groups]
        panel.set_xticks(range(len(groups)), shown, fontsize=8)
        panel.set_title(label, fontsize=11, loc="left")
    _finish(figure, chart.approaches, title, path)


def _figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    # The canvas is ours: pyplot would keep global state and may look for a display.
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def _bars(
    panel: Axes, chart: Chart, metric: str, cluster: ClusterKind, groups: Sequence[str]
) -> None:
    width = 0.86 / max(1, len(chart.approaches))
    drawn = [
        _bar(panel, chart.row(metric, group, cluster, name), place, number, width, chart)
        for place, group in enumerate(groups)
        for number, name in enumerate(chart.approaches)
    ]
    cut(panel, drawn)
    names = [f"{CODING}\n(coding)" if group == CODING_GROUP else group for group in groups]
    panel.set_xticks(range(len(groups)), names)


def _bar(
    panel: Axes, row: Row | None, place: int, number: int, width: float, chart: Chart
) -> Bar | None:
    at = place + (number - (len(chart.approaches) - 1) / 2) * width
    if row is None:
        return None
    if row.paper is not None:
        panel.plot(at, row.paper, **MARK)
    if row.ours is None:
        return None
    panel.bar(
        at,
        row.ours.mean,
        width * 0.92,
        color=COLORS[chart.approaches[number]],
        yerr=row.ours.standard_error,
        error_kw={"elinewidth": 0.9, "capsize": 1.5, "ecolor": "#444444"},
    )
    error = row.ours.standard_error or 0.0
    paper = row.ours.mean if row.paper is None else row.paper
    lowest, highest = min(row.ours.mean - error, paper), max(row.ours.mean + error, paper)
    return Bar(chart.approaches[number], at, row.ours.mean, lowest, highest)


def cut(panel: Axes, bars: Sequence[Bar | None]) -> None:
    drawn = [bar for bar in bars if bar is not None]
    in_scale = [bar for bar in drawn if bar.name not in OUT_OF_SCALE]
    if not in_scale:
        return
    low = min(0.0, *(bar.lowest for bar in in_scale))
    high = max(0.0, *(bar.highest for bar in in_scale))
    if low == high:
        return
    margin = 0.08 * (high - low)
    low, high = low - margin if low < 0 else 0.0, high + margin
    panel.set_ylim(low, high)
    for bar in drawn:
        if bar.name in OUT_OF_SCALE and not low <= bar.mean <= high:
            end, side = (high, "top") if bar.mean > high else (low, "bottom")
            panel.text(
                bar.at, end, f" {bar.mean:.0f} ", rotation=90, ha="center", va=side,
                fontsize=7, color="white",
            )  # fmt: skip


def _finish(figure: Figure, names: Sequence[ApproachName], title: str, path: Path) -> None:
    for panel in figure.axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color="#dddddd", linewidth=0.6)
        panel.axhline(0, color="#888888", linewidth=0.8)
        panel.set_axisbelow(True)
        if not panel.has_data() or not names:
            panel.text(0.5, 0.5, "not simulated yet", ha="center", transform=panel.transAxes)
    handles: list[Artist] = [Patch(color=COLORS[name], label=str(name)) for name in names]
    handles.append(Line2D([], [], label=MARK_LABEL, **MARK))
    figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False)
    figure.suptitle(title, fontsize=12)
    figure.savefig(path, dpi=110)
