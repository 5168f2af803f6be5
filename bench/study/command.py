"""`shadowprefill sim run` and `sim compare`: the options, and what is printed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console

from bench.study.approaches import ApproachName
from bench.study.schema import HourWindow
from configs.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.study.schema import SimConfig

app = typer.Typer(no_args_is_help=True, help="Simulate clusters of H100s, with and without shadow.")

ConfigFile = Annotated[Path, typer.Argument(help="Simulation (YAML), such as configs/sim/*.yaml.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="Change one value, such as normal.rho=0.5.")
]
ResultDir = Annotated[Path, typer.Option(help="Folder of results and of finished cells.")]
Workers = Annotated[int, typer.Option(min=1, max=64, help="Processes.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
DEFAULT_DIR = Path("out/sim")
DEFAULT_APPROACHES = (
    ApproachName.NO_SHADOW,
    ApproachName.HARVEST_SLO,
    ApproachName.HARVEST_SLO_HOST,
    ApproachName.ORACLE_HOST,
)


@app.callback()
def root() -> None:
    """Simulate clusters of H100s, with and without shadow."""


@app.command()
def run(
    config: ConfigFile,
    overrides: Overrides = None,
    result_dir: ResultDir = DEFAULT_DIR,
    workers: Workers = 1,
    as_json: AsJson = False,
) -> None:
    """One cluster, one workload, one approach: a table and a timeline."""
    # Here, because no other `shadowprefill` command needs numpy or matplotlib.
    from bench.study.single import run_single

    loaded = loaded_or_exit(config, overrides or ())
    picture = result_dir / f"{config.stem}-{loaded.approach}.png"
    found = run_single(loaded, result_dir, workers, picture, errors_console())
    if as_json:
        print_json(found.document)
        return
    console = output_console()
    console.print(found.table)
    for line in found.lines:
        console.print(line, soft_wrap=True)
    console.print(f"picture: {picture}", soft_wrap=True)


@app.command()
def compare(
    config: ConfigFile,
    approach: Annotated[
        list[ApproachName] | None,
        typer.Option(help="May be given several times; the first one is the baseline."),
    ] = None,
    window: Annotated[
        list[HourWindow] | None, typer.Option(help="Hours of normal traffic; all three by default.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Runs per hour.")] = 3,
    overrides: Overrides = None,
    result_dir: ResultDir = DEFAULT_DIR,
    workers: Workers = 1,
    as_json: AsJson = False,
) -> None:
    """Several approaches on the same arrivals: differences with standard errors."""
    from bench.study.several import compare_approaches

    loaded = loaded_or_exit(config, overrides or ())
    found = compare_approaches(
        loaded,
        approach or DEFAULT_APPROACHES,
        window or tuple(HourWindow),
        seeds,
        result_dir,
        workers,
        errors_console(),
    )
    if as_json:
        print_json(found.document)
    else:
        output_console().print(found.table)


def loaded_or_exit(path: Path, overrides: Sequence[str]) -> SimConfig:
    """Or the command ends with every error of the file."""
    from bench.study.load import load_sim_config

    try:
        return load_sim_config(path, overrides)
    except ConfigError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


def print_json(document: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(document)).decode())


def output_console() -> Console:
    """In a file or a pipe, where rich assumes 80 columns, the table gets the width it needs."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=140)


def errors_console() -> Console:
    """Progress must not end up in what is piped on."""
    return Console(stderr=True, highlight=False)
