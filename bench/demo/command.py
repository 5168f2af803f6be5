"""The options of the demo, shared by `python -m bench.demo` and `shadowprefill demo`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from bench.demo.errors import DemoError
from bench.demo.options import Options
from configs.errors import ConfigError
from coordinator.run_state import RunDirBusy
from coordinator.start_errors import ClusterStartError

if TYPE_CHECKING:
    from types import FrameType

PD_CONFIG, PD_OUT = Path("configs/local_pd.yaml"), Path("out/demo")
COLOCATED_CONFIG = Path("configs/local_colocated.yaml")
COLOCATED_OUT = Path("out/demo-colocated")


def demo(
    config: Annotated[
        Path | None, typer.Option(help="Cluster to start; its first two models play.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results and the logs.")] = None,
    colocated: Annotated[
        bool, typer.Option("--colocated", help="One engine per model instead of P and D apart.")
    ] = False,
    base_url: Annotated[
        str | None,
        typer.Option(help="Use a running coordinator of this configuration; nothing is started."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the tool gaps.")] = 7,
) -> None:
    """Play one agent session that switches models, shadow off and on, and show the difference."""
    # Here, because the story needs matplotlib and every other `shadowprefill` command does not.
    from bench.demo.story import run_demo

    options = Options(
        config=config or (COLOCATED_CONFIG if colocated else PD_CONFIG),
        out=out or (COLOCATED_OUT if colocated else PD_OUT),
        base_url=base_url,
        seed=seed,
    )
    # The cluster is stopped by leaving its block: SIGTERM must unwind as Ctrl-C does.
    signal.signal(signal.SIGTERM, _interrupt)
    console = _console(stderr=False)
    try:
        code = run_demo(options, console)
    except (DemoError, ClusterStartError, RunDirBusy, ConfigError) as error:
        _console(stderr=True).print(f"demo failed: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        _console(stderr=True).print("interrupted; what the demo started is stopped")
        raise typer.Exit(130) from None
    raise typer.Exit(code)


def _console(*, stderr: bool) -> Console:
    """In a file or a pipe, where rich assumes 80 columns, the table gets the width it needs."""
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=110)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
