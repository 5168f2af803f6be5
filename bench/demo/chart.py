"""TTFT per call as bars, for people: a PNG, and the same as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from pathlib import Path

    from bench.demo.summary import Runs

BAR_COLUMNS = 60
COLORS = {"off": "#b35900", "on": "#1f4e79", "floor": "#9aa5b1"}


def _series(runs: Runs) -> dict[str, list[float]]:
    return {run.run: [row.ttft_ms for row in run.rows] for run in (runs.off, runs.on, runs.floor)}


def write_png(runs: Runs, title: str, path: Path) -> None:
    # The canvas is ours: pyplot would keep global state and may look for a display.
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    width = 0.27
    for offset, (name, values) in zip((-width, 0.0, width), _series(runs).items(), strict=True):
        places = [row.call + offset for row in runs.off.rows]
        axes.bar(places, [value / 1e3 for value in values], width, label=name, color=COLORS[name])
    for row in runs.off.rows:
        if row.is_switch:
            axes.axvspan(row.call - 0.5, row.call + 0.5, color="#f2e8d5", zorder=0)
    labels = [f"{row.call}\n{row.model}\n{row.prompt_tokens}" for row in runs.off.rows]
    axes.set_xticks([row.call for row in runs.off.rows], labels)
    axes.set_xlabel("call, model, prompt tokens (shaded: the model was switched)")
    axes.set_ylabel("time to first token (s)")
    axes.set_title(title)
    figure.legend(title="shadow", loc="outside right upper")
    figure.savefig(path, dpi=130)


def text_chart(runs: Runs, title: str) -> str:
    series = _series(runs)
    longest_ms = max(max(values) for values in series.values())
    lines = [title, "time to first token in ms, * = switch call", ""]
    for index, row in enumerate(runs.off.rows):
        head = f"{row.call:>3} {row.model:<8} {'*' if row.is_switch else ' '}"
        for name, values in series.items():
            bar = "█" * round(BAR_COLUMNS * values[index] / longest_ms)
            lines.append(f"{head} {name:<5} {bar or '▏'} {values[index]:.0f}")
            head = " " * len(head)
    return "\n".join(lines) + "\n"
