"""`shadowprefill doctor`: the options, and what is printed."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003  typer resolves it
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from configs.load import ConfigError, load_config, load_profile
from configs.memory.plan import plan_memory
from coordinator.doctor.judge import Line, Need, Status, judge
from coordinator.doctor.look import look
from coordinator.progress import output_console

if TYPE_CHECKING:
    from collections.abc import Sequence

_COLORS = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "red"}


def doctor(
    config: Annotated[
        Path | None, typer.Option("--config", help="Also check what this cluster needs (YAML).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Check this node: GPUs, NVLink, RDMA, NIXL, limits, ports, versions, clock. Exit code 1 if
    something must be put right."""
    need = plan = loaded = None
    if config is not None:
        try:
            loaded = load_config(config)
        except ConfigError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(2) from None
        plan = plan_memory(loaded)
        need = Need.of(loaded, plan, load_profile(loaded.profile).gpu is not None)
    lines = judge(look(loaded), need, plan)
    failed = any(line.status is Status.FAIL for line in lines)
    if as_json:
        document = {"ok": not failed, "checks": [line._asdict() for line in lines]}
        typer.echo(json.dumps(document, indent=2))
    else:
        output_console().print(_table(lines))
    raise typer.Exit(1 if failed else 0)


def _table(lines: Sequence[Line]) -> Table:
    table = Table(title="shadowprefill doctor", title_justify="left")
    for name in ("check", "", "found", "what to do"):
        table.add_column(name, overflow="fold")
    for line in lines:
        colour = _COLORS[line.status]
        table.add_row(
            line.check, f"[{colour}]{line.status.value}[/{colour}]", line.found, line.advice
        )
    return table
