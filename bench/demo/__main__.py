"""`python -m bench.demo`: one agent session, two models, shadow off and on."""

from __future__ import annotations

import typer

from bench.demo.command import demo

if __name__ == "__main__":
    typer.run(demo)
