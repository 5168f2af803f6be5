"""Commands of bench; the console script composes them with the coordinator's."""

from __future__ import annotations

import typer

from bench.demo.command import demo
from bench.paper.command import paper
from bench.plan.command import app as plan_app
from bench.study.command import app as sim_app
from bench.trace_command import app as trace_app

app = typer.Typer(no_args_is_help=True)
app.command("demo")(demo)
app.add_typer(trace_app, name="trace")
sim_app.command("paper")(paper)
app.add_typer(sim_app, name="sim")
app.add_typer(plan_app, name="plan")
