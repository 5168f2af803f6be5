"""`shadowprefill trace plot`: the options, and what is printed."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer resolves it
from typing import Annotated

import typer

from bench.trace_pulls import pulls_text, replay
from bench.trace_read import TraceUnreadable, read_trace
from bench.trace_summary import summary_of, text_of

app = typer.Typer(no_args_is_help=True, help="Look at the trace of an engine.")


@app.callback()
def root() -> None:
    """Look at the trace of an engine."""


@app.command()
def plot(
    file: Annotated[Path, typer.Argument(help="Trace of one engine (trace_path).")],
    output: Annotated[
        Path | None, typer.Option(help="The picture; beside the trace if not given.")
    ] = None,
    from_s: Annotated[float | None, typer.Option("--from", help="Begin at this second.")] = None,
    to_s: Annotated[float | None, typer.Option("--to", help="End at this second.")] = None,
) -> None:
    """Draw what each iteration carried and how long it took, and print a summary."""
    # Here, because no other `shadowprefill` command needs matplotlib.
    from bench.trace_plot import write_png

    path = output or file.with_suffix(".png")
    try:
        trace = read_trace(file).between(from_s, to_s)
        write_png(trace, path)
    except TraceUnreadable as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    except OSError as error:
        typer.echo(f"{path}: {error.strerror}", err=True)
        raise typer.Exit(1) from None
    typer.echo(text_of(summary_of(trace), trace))
    typer.echo(f"picture: {path}")


@app.command()
def pulls(
    file: Annotated[Path, typer.Argument(help="Trace of a decode instance (trace_path).")],
) -> None:
    """Say what moved to a decode instance, and whether a shadow pull ever began beside a normal
    one (then with exit code 1)."""
    try:
        found = replay(read_trace(file).pulls)
    except TraceUnreadable as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    typer.echo(pulls_text(found))
    if found.violations:
        raise typer.Exit(1)
