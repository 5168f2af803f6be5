"""Commands of bench; the console script composes them with the coordinator's."""

from __future__ import annotations

import typer

from bench.demo.command import demo

app = typer.Typer(no_args_is_help=True)
app.command("demo")(demo)
