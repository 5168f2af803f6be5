"""The console script: composes the commands of coordinator, routing and bench, nothing else."""

from __future__ import annotations

from importlib.util import find_spec

from coordinator.cli import app
from routing.cli import app as routing_app


def main() -> None:
    app.add_typer(routing_app)
    # A coordinator can be installed without the benchmarks.
    if find_spec("bench") is not None and find_spec("bench.cli") is not None:
        from bench.cli import app as bench_app

        app.add_typer(bench_app)
    app()


if __name__ == "__main__":
    main()
