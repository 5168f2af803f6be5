"""Commands of bench; the console script composes them with the coordinator's."""

from __future__ import annotations

import typer

from bench.demo.command import demo
from bench.study.command import app as sim_app
from bench.trace_command import app as trace_app

app = typer.Typer(no_args_is_help=True)
app.command("demo")(demo)
app.add_typer(trace_app, name="trace")
app.add_typer(sim_app, name="sim")
