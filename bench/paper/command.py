"""`shadowprefill sim paper`: the options, and what is printed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from bench.study.command import ResultDir, errors_console, output_console

if TYPE_CHECKING:
    from bench.paper.tables import Row

DEFAULT_DIR = Path("out/paper")


def paper(
    quick: Annotated[
        bool,
        typer.Option("--quick/--full", help="One pair per trace and one seed, or the whole study."),
    ] = True,
    sensitivity: Annotated[
        bool,
        typer.Option("--sensitivity", help="Figures 9d to 9g, 15 and 16 instead of the study."),
    ] = False,
    readings: Annotated[
        bool,
        typer.Option("--readings", help="What the ladder depends on, instead of the study."),
    ] = False,
    scores: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="LLMRouter's score matrix (CSV): also accuracy against cost, Figure 7.",
        ),
    ] = None,
    kernel: Annotated[
        bool,
        typer.Option("--kernel", help="H100 kernels with a lean host, not the paper's testbed."),
    ] = False,
    result_dir: ResultDir = DEFAULT_DIR,
    page: Annotated[
        Path | None, typer.Option(help="Also write the page there, its pictures in results/.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes.")] = 2,
) -> None:
    """The paper's experiments: tables beside the paper's numbers, and figures."""
    # Here, because no other `shadowprefill` command needs numpy or matplotlib.
    from bench.paper.experiments import full_scale, quick_scale
    from bench.paper.study import run_accuracy, run_readings, run_sensitivities, run_study
    from bench.sim.hardware import LatencyMode

    scale = quick_scale() if quick else full_scale()
    latency = LatencyMode.KERNEL if kernel else LatencyMode.VLLM_TESTBED
    console = output_console()
    if sensitivity:
        run_sensitivities(scale, latency, result_dir, workers, errors_console())
        console.print(f"sensitivities: {result_dir / 'sensitivity.png'}", soft_wrap=True)
        return
    if readings:
        run_readings(scale, latency, result_dir, workers, errors_console())
        console.print(f"readings: {result_dir / 'readings.json'}", soft_wrap=True)
        return
    if scores is not None:
        run_accuracy(scale, latency, scores, result_dir, workers, errors_console())
    rows = run_study(scale, latency, result_dir, workers, errors_console(), page)
    console.print(_table(rows))
    console.print(f"page: {result_dir / 'RESULTS.md'}", soft_wrap=True)


def _table(rows: list[Row]) -> Table:
    from bench.paper.page import ours_text, verdict_of

    table = Table(title="ours beside the paper's", title_justify="left")
    for name in ("metric", "pairs", "cluster", "approach"):
        table.add_column(name)
    for name in ("ours", "paper", "verdict"):
        table.add_column(name, justify="right")
    for row in rows:
        if row.paper is not None:
            table.add_row(
                row.label, row.group, row.cluster, row.approach, ours_text(row),
                f"{row.paper:g}", str(verdict_of(row)),
            )  # fmt: skip
    return table
