"""One run: a cell with one approach, its table, its JSON and its timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from bench.study.cell import cell_result, run_approaches
from bench.study.jobs import Folder, capacities_of, key_of
from bench.study.progress import Progress
from bench.study.table import run_lines, run_table
from bench.study.timeline import write_timeline

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from bench.study.schema import SimConfig


class Single(NamedTuple):
    table: Table
    lines: list[str]
    document: dict[str, Any]


def run_single(
    config: SimConfig, result_dir: Path, workers: int, picture: Path, console: Console
) -> Single:
    folder = Folder(result_dir / "cells")
    capacities = capacities_of([config], folder, workers, Progress(console, "capacities"))
    capacities_per_s = capacities[key_of(config)]
    runs = run_approaches(config, (config.approach,), capacities_per_s)
    outcome = runs[0].outcome
    models = tuple(config.models)
    title = _title(config)
    write_timeline(
        outcome, models, config.run.warmup_s, config.run.end_s + config.run.drain_s, title, picture
    )
    result = cell_result(config, runs).results[str(config.approach)]
    document = {
        "config": config.model_dump(mode="json"),
        "capacities_per_s": dict(zip(models, capacities_per_s, strict=False)),
        "result": msgspec.to_builtins(result),
        "events": outcome.events,
        "end_s": round(outcome.end_s, 6),
    }
    return Single(run_table(result, title), run_lines(result), document)


def _title(config: SimConfig) -> str:
    shapes = [
        f"{model} {pool.colocated}x"
        if pool.colocated
        else f"{model} {pool.prefill}P:{pool.decode}D"
        for model, pool in config.models.items()
    ]
    load = "no normal traffic"
    if config.normal is not None:
        load = f"load {config.normal.rho:g} of capacity, {config.normal.window} hour"
    return f"{', '.join(shapes)}; {config.approach}; {load}; H100 as {config.latency}"
