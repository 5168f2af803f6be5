"""The picture of a run: a panel per figure, loads side by side, a bar per controller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

COLORS = {
    "off": "#b35900",
    "harvest-slo": "#1f4e79",
    "harvest": "#5b8fbf",
    "predictive": "#8fb08c",
    "request": "#8c6bb1",
    "eager": "#7f7f7f",
}
PANELS = (
    ("switch_ttft_ms", "TTFT of switch calls (s)", 1e-3),
    ("llm_call_ms", "latency of all session calls (s)", 1e-3),
    ("normal_ttft_ms", "TTFT of normal requests (s)", 1e-3),
    ("normal_tpot_ms", "TPOT of normal requests (ms)", 1.0),
    ("normal_slo_attainment", "normal requests within both SLOs (%)", 100.0),
)
FLOOR = "stayed_ttft_ms"
FLOOR_LABEL = "calls that stay on their model, off (floor of a switch)"
FLOOR_STYLE: dict[str, Any] = {"color": "#222222", "linestyle": "dashed", "linewidth": 1.4}


def write_png(cells: Sequence[dict[str, Any]], title: str, path: Path) -> None:
    """`cells` as in the JSON document."""
    # The canvas is ours: pyplot would keep global state and may look for a display.
    figure = Figure(figsize=(13, 7.6), layout="constrained")
    FigureCanvasAgg(figure)
    loads = sorted({cell["load"] for cell in cells})
    names = [name for name in COLORS if any(cell["controller"] == name for cell in cells)]
    axes = list(figure.subplots(2, 3).flat)
    for panel, (key, label, scale) in zip(axes, PANELS, strict=False):
        _bars(panel, cells, (key, scale), loads, names)
        panel.set_title(label, fontsize=11, loc="left")
    _floor(axes[0], cells, loads)
    axes[4].set_ylim(top=100)
    _shadow_tokens(axes[5], cells, loads, names)
    for panel in axes:
        panel.set_xlim(-0.6, len(loads) - 0.4)
        panel.set_ylim(bottom=0)
        panel.set_xticks(range(len(loads)), [f"{load:g}" for load in loads])
        panel.set_xlabel("load of normal traffic (share of capacity)")
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(axis="y", color="#dddddd", linewidth=0.6)
        panel.set_axisbelow(True)
    handles: list[Artist] = [Patch(color=COLORS[name], label=name) for name in names]
    handles.append(Line2D([], [], label=FLOOR_LABEL, **FLOOR_STYLE))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    figure.suptitle(title, fontsize=12)
    figure.savefig(path, dpi=130)


def _place(index: int, name: str, names: Sequence[str]) -> tuple[float, float]:
    """Where a controller's bar stands, and how wide it is."""
    width = 0.8 / len(names)
    return index + (names.index(name) - (len(names) - 1) / 2) * width, width * 0.92


def _bars(
    panel: Axes,
    cells: Sequence[dict[str, Any]],
    figure: tuple[str, float],
    loads: Sequence[float],
    names: Sequence[str],
) -> None:
    key, scale = figure
    for cell in cells:
        spread = cell[key]
        if spread is None:
            continue
        name = cell["controller"]
        at, width = _place(loads.index(cell["load"]), name, names)
        mean = scale * spread["mean"]
        # Rounding may put an end on the wrong side of the mean, which matplotlib refuses.
        errors = [
            [max(0.0, mean - scale * spread["low"])],
            [max(0.0, scale * spread["high"] - mean)],
        ]
        panel.bar(
            at,
            mean,
            width,
            color=COLORS[name],
            yerr=errors,
            error_kw={"elinewidth": 1.1, "capsize": 2.5, "ecolor": "#222222"},
        )


def _floor(panel: Axes, cells: Sequence[dict[str, Any]], loads: Sequence[float]) -> None:
    for cell in cells:
        if cell["controller"] == "off" and cell[FLOOR] is not None:
            index, floor_s = loads.index(cell["load"]), cell[FLOOR]["mean"] / 1e3
            panel.plot([index - 0.45, index + 0.45], [floor_s, floor_s], **FLOOR_STYLE)


def _shadow_tokens(
    panel: Axes, cells: Sequence[dict[str, Any]], loads: Sequence[float], names: Sequence[str]
) -> None:
    """Per repeat, so that controllers with fewer repeats compare."""
    panel.set_title("thousand shadow tokens per cell (hatched: used)", fontsize=11, loc="left")
    for cell in cells:
        repeats = len(cell["repeats"])
        at, width = _place(loads.index(cell["load"]), cell["controller"], names)
        computed = cell["shadow_tokens_computed"]["total"] / repeats / 1e3
        used = cell["shadow_tokens_used"]["total"] / repeats / 1e3
        color = COLORS[cell["controller"]]
        panel.bar(at, computed, width, color=color, alpha=0.35)
        panel.bar(at, used, width, color=color, hatch="///", edgecolor="white", linewidth=0)
