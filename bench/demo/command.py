"""The options of the demo, shared by `python -m bench.demo` and `shadowprefill demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bench.demo.errors import DemoError
from bench.demo.options import Options
from bench.terminal import unwind_on_sigterm, wide_console
from configs.errors import ConfigError
from coordinator.run_state import RunDirBusy
from coordinator.start_errors import ClusterStartError

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
    unwind_on_sigterm()
    console, errors = wide_console(110), wide_console(110, stderr=True)
    try:
        code = run_demo(options, console)
    except (DemoError, ClusterStartError, RunDirBusy, ConfigError) as error:
        errors.print(f"demo failed: {error}", markup=False, soft_wrap=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt:
        errors.print("interrupted; what the demo started is stopped")
        raise typer.Exit(130) from None
    raise typer.Exit(code)
