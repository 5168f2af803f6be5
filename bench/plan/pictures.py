"""The curves of a plan: one panel per model for the split, one per question for the links."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench.plan.links import NAMES
from bench.plan.split import LEAST_ATTAINMENT_PCT, WITH, WITHOUT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    from bench.plan.links import LinkPlan
    from bench.plan.split import SplitPlan, SplitPoint

COLORS = {WITHOUT: "#b35900", WITH: "#1f4e79"}
CAPACITY_COLOR = "#9ecae1"


def write_split(plan: SplitPlan, title: str, path: Path) -> None:
    models = list(dict.fromkeys(point.model for point in plan.points))
    figure = Figure(figsize=(5.6 * len(models), 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    for panel, model in zip(
        figure.subplots(1, len(models), squeeze=False).flat, models, strict=True
    ):
        _split_panel(panel, plan.of(model))
        panel.set_title(model, fontsize=11, loc="left")
    handles: list[Artist] = [
        Line2D([], [], color=CAPACITY_COLOR, linewidth=8, label="capacity: requests/s within SLOs")
    ]
    if any(point.call_s for point in plan.points):
        handles += [
            Line2D([], [], color=color, marker="o", label=f"mean LLM call, {name}")
            for name, color in COLORS.items()
        ]
        handles.append(
            Line2D([], [], color="black", marker="x", linestyle="",
                   label=f"below {LEAST_ATTAINMENT_PCT:g}% of normal requests within SLOs")
        )  # fmt: skip
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=120)


def _split_panel(panel: Axes, points: Sequence[SplitPoint]) -> None:
    at = range(len(points))
    panel.bar(at, [point.capacity_per_s for point in points], 0.6, color=CAPACITY_COLOR)
    panel.set_ylabel("capacity (requests/s)")
    panel.set_xticks(at, [point.name for point in points], fontsize=9)
    panel.spines[["top"]].set_visible(False)
    if not any(point.call_s for point in points):
        return
    calls = panel.twinx()
    for name, color in COLORS.items():
        known = [(i, point) for i, point in enumerate(points) if name in point.call_s]
        calls.errorbar(
            [i for i, _ in known],
            [point.call_s[name].mean for _, point in known],
            yerr=[point.call_s[name].standard_error or 0.0 for _, point in known],
            color=color,
            marker="o",
            capsize=2,
        )
        for i, point in known:
            if point.attained_pct[name].mean < LEAST_ATTAINMENT_PCT:
                calls.plot(i, point.call_s[name].mean, color="black", marker="x", markersize=9)
    calls.set_ylabel("mean LLM call (s)")
    calls.set_ylim(bottom=0)
    calls.spines[["top"]].set_visible(False)


def write_links(plan: LinkPlan, title: str, path: Path) -> None:
    figure = Figure(figsize=(14, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(1, 3, squeeze=False).flat)
    for panel, field, label in zip(
        axes,
        ("call_s", "attained_pct", "busy_pct"),
        ("mean LLM call (s)", "normal requests within SLOs (%)", "decode links carrying KV (%)"),
        strict=True,
    ):
        for name in NAMES:
            known = [point for point in plan.points if name in getattr(point, field)]
            panel.errorbar(
                [point.gb_per_s for point in known],
                [getattr(point, field)[name].mean for point in known],
                yerr=[getattr(point, field)[name].standard_error or 0.0 for point in known],
                color=COLORS[name],
                marker="o",
                markersize=4,
                capsize=2,
                label=str(name) if known else None,
            )
            enough = plan.limit_gb_per_s(name)
            if enough is not None:
                panel.axvline(enough, color=COLORS[name], linestyle="dotted", linewidth=1)
        panel.set_xscale("log")
        ticks = [point.gb_per_s for point in plan.points]
        panel.set_xticks(ticks, [f"{gb_per_s:g}" for gb_per_s in ticks], minor=False)
        panel.minorticks_off()
        panel.set_xlabel("KV link (GB/s per GPU); dotted: enough")
        panel.set_title(label, fontsize=11, loc="left")
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes[0].set_ylim(bottom=0)
    axes[2].set_ylim(bottom=0)
    axes[0].legend(fontsize=9)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=120)
