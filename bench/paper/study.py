"""Runs the paper's study and writes what came out: tables.json, the pictures, RESULTS.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.paper.accuracy import accuracy_cells, spots_of
from bench.paper.accuracy_figure import write_accuracy
from bench.paper.experiments import APPROACHES, ClusterKind, planned
from bench.paper.figures import write_ladder, write_origins, write_overheads
from bench.paper.page import page
from bench.paper.published import pairs, published
from bench.paper.readings import reading_cells, reading_rows
from bench.paper.sections import (
    SENSITIVITIES,
    accuracy_section,
    keep_readings,
    keep_spots,
    readings_section,
    sensitivity_section,
    write_json,
)
from bench.paper.sensitivity import points_of, sweep_cells
from bench.paper.sensitivity_figure import write_sensitivities
from bench.paper.tables import Ran, rows_of
from bench.paper.waste import waste_section
from bench.study.jobs import Folder, cells_of, write_whole
from bench.study.progress import Progress
from bench.study.table import estimate_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from bench.paper.accuracy import Spot
    from bench.paper.experiments import Scale
    from bench.paper.readings import ReadingRow
    from bench.paper.sensitivity import Point
    from bench.paper.tables import Row
    from bench.sim.hardware import LatencyMode

PICTURES = "results/"


def run_study(
    scale: Scale,
    latency: LatencyMode,
    result_dir: Path,
    workers: int,
    console: Console,
    page_at: Path | None = None,
) -> list[Row]:
    """Also writes the page to `page_at`, with its pictures in a folder beside it."""
    plans = list(planned(scale, latency))
    results = cells_of(
        [(plan.config, plan.approaches) for plan in plans],
        Folder(result_dir / "cells"),
        workers,
        Progress(console, f"{scale.name} study"),
    )
    cells = [Ran(plan, result) for plan, result in zip(plans, results, strict=True)]
    rows = rows_of(cells)
    document = {
        "about": about(scale, latency),
        "rows": [row.to_json() for row in rows],
    }
    write_json(result_dir / "tables.json", document)
    pictures = _write_pictures(rows, scale, latency, result_dir)
    for path, folder in ((result_dir / "RESULTS.md", ""), (page_at, PICTURES)):
        if path is not None:
            shown = {f"{folder}{name}": caption for name, caption in pictures.items()}
            more = [
                *waste_section(rows),
                *readings_section(result_dir),
                *accuracy_section(result_dir, folder),
                *sensitivity_section(result_dir, folder),
            ]
            text = page(rows, about(scale, latency), shown, more)
            write_whole(path, text.encode())
    if page_at is not None:
        _copy_pictures(result_dir, page_at.parent / PICTURES)
    return rows


def run_sensitivities(
    scale: Scale, latency: LatencyMode, result_dir: Path, workers: int, console: Console
) -> list[Point]:
    cells = sweep_cells(scale, latency)
    results = cells_of(
        [(cell.plan.config, cell.plan.approaches) for cell in cells],
        Folder(result_dir / "cells"),
        workers,
        Progress(console, "sensitivities"),
    )
    points = points_of(
        [(cell, Ran(cell.plan, result)) for cell, result in zip(cells, results, strict=True)]
    )
    document = [{**point._asdict(), "ours": estimate_json(point.ours)} for point in points]
    write_json(result_dir / SENSITIVITIES, document)
    title = f"Sensitivities, one pair per trace; H100 as {latency}, {scale.name} runs"
    write_sensitivities(points, title, result_dir / "sensitivity.png")
    return points


def run_readings(
    scale: Scale, latency: LatencyMode, result_dir: Path, workers: int, console: Console
) -> list[ReadingRow]:
    cells = reading_cells(scale, latency)
    results = cells_of(
        [(cell.plan.config, cell.plan.approaches) for cell in cells],
        Folder(result_dir / "cells"),
        workers,
        Progress(console, "readings"),
    )
    rows = reading_rows(
        [(cell, Ran(cell.plan, result)) for cell, result in zip(cells, results, strict=True)]
    )
    keep_readings(rows, result_dir)
    return rows


def run_accuracy(
    scale: Scale,
    latency: LatencyMode,
    matrix: Path,
    result_dir: Path,
    workers: int,
    console: Console,
) -> list[Spot]:
    cells = accuracy_cells(scale, latency, matrix)
    results = iter(
        cells_of(
            [work for cell in cells for work in cell.work],
            Folder(result_dir / "cells"),
            workers,
            Progress(console, "accuracy"),
        )
    )
    spots = spots_of([(cell, [next(results) for _ in cell.work]) for cell in cells])
    keep_spots(spots, result_dir)
    title = f"Accuracy and token cost of routing; H100 as {latency}, {scale.name} runs"
    write_accuracy(spots, title, result_dir / "accuracy.png")
    return spots


def about(scale: Scale, latency: LatencyMode) -> list[str]:
    """What a reader has to know to judge the numbers."""
    names = ", ".join(str(name) for name in APPROACHES[ClusterKind.COLOCATED])
    rates = ", ".join(f"{name} {rate:g}" for name, rate in pairs().sessions_per_s.items())
    return [
        f"Made by `shadowprefill sim paper --{scale.name}`: {len(scale.pairs)} model pairs, "
        f"{scale.seeds} seed(s) x 3 hours (peak, median, trough), {scale.measured_s:g} s measured "
        f"(coding {scale.coding_measured_s:g} s) after 120 s of warm-up, four instances per model, "
        f"normal traffic at 0.7 of the measured capacity. H100 latency in the mode `{latency}`.",
        "",
        f"Approaches: {names}. Mean and standard error over seeds and hours; calls are compared "
        "that end under every approach.",
        "",
        "Read literally: n of Algorithm 1 is found from the number of tokens alone, before a job "
        "is looked at (`shadow.predicts: tokens`). The engines of this project foresee the context "
        "too; the table of readings says what that changes.",
        "",
        "Not the paper's: the routes (a Markov chain at the switch rates of Table 1, because the "
        "score matrices are not published), the lengths of sessions and of Azure's traffic (drawn "
        f"from published statistics), the arrival rate of sessions per second ({rates}), prices "
        "(LLMRouter's, of stand-ins where it lists no such model), and power (100 W idle, 250 W "
        "more while an iteration runs, 350 W more for arithmetic: assumed, not measured).",
        "",
        f"Numbers of the paper: {published().source}",
    ]


def _write_pictures(
    rows: Sequence[Row], scale: Scale, latency: LatencyMode, result_dir: Path
) -> dict[str, str]:
    """Caption by file name."""
    note = f"{scale.name} runs, H100 as {latency}, mean ± standard error over seeds and hours"
    captions = {
        "ladder.png": "The approaches, colocated (figures 4 and 5)",
        "ladder_pd.png": "The approaches, prefill and decode apart",
        "overheads.png": "What it costs (figure 8)",
        "origins.png": "Where the benefit comes from (figure 9a to 9c)",
    }
    titles = {name: f"{caption}; {note}" for name, caption in captions.items()}
    write_ladder(rows, ClusterKind.COLOCATED, titles["ladder.png"], result_dir / "ladder.png")
    write_ladder(rows, ClusterKind.PD, titles["ladder_pd.png"], result_dir / "ladder_pd.png")
    write_overheads(rows, titles["overheads.png"], result_dir / "overheads.png")
    write_origins(rows, titles["origins.png"], result_dir / "origins.png")
    return captions


def _copy_pictures(result_dir: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for picture in result_dir.glob("*.png"):
        write_whole(folder / picture.name, picture.read_bytes())
