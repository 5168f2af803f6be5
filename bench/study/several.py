"""Several approaches on the same arrivals, over seeds and hours: differences and their errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from bench.study.jobs import Folder, cells_of
from bench.study.progress import Progress
from bench.study.table import compare_json, compare_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from bench.study.approaches import ApproachName
    from bench.study.schema import HourWindow, SimConfig


class Compared(NamedTuple):
    table: Table
    document: dict[str, Any]


def runs_of(config: SimConfig, windows: Sequence[HourWindow], seeds: int) -> list[SimConfig]:
    """The configuration at each hour and seed; without normal traffic all hours are the same."""
    normals = [config.normal]
    if config.normal is not None:
        normals = [config.normal.model_copy(update={"window": window}) for window in windows]
    return [
        config.model_copy(
            update={
                "normal": normal,
                "run": config.run.model_copy(update={"seed": config.run.seed + seed}),
            }
        )
        for normal in normals
        for seed in range(seeds)
    ]


def compare_approaches(
    config: SimConfig,
    names: Sequence[ApproachName],
    windows: Sequence[HourWindow],
    seeds: int,
    result_dir: Path,
    workers: int,
    console: Console,
) -> Compared:
    names = tuple(dict.fromkeys(names))
    configs = runs_of(config, windows, seeds)
    cells = cells_of(
        [(one, names) for one in configs],
        Folder(result_dir / "cells"),
        workers,
        Progress(console, "cells"),
    )
    runs = f"{len(cells)} runs of {config.run.measured_s:g} s"
    document = {
        "config": config.model_dump(mode="json"),
        "cells": len(cells),
        "baseline": str(names[0]),
        "approaches": compare_json(cells, names),
    }
    return Compared(compare_table(cells, names, f"{runs}, mean ± standard error"), document)
