"""How a starting and running cluster is shown: a live table on a terminal, plain lines elsewhere.

Fed with ClusterState values, so that the process that owns the cluster and a client that only
reads `state.json` show the same."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from coordinator.start_errors import last_line_of

if TYPE_CHECKING:
    from types import TracebackType

    from coordinator.run_state import ClusterState, InstanceState

_COLOURS = {"starting": "yellow", "ready": "green", "exited": "red", "stopped": "dim"}
_PIPE_WIDTH = 240


def output_console(*, stderr: bool = False) -> Console:
    """As wide as the terminal; wide enough for a whole row where there is none."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=_PIPE_WIDTH)


def say(console: Console, text: str) -> None:
    """Text as it is: no markup, no colours, no line breaks of ours (it may be pasted)."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


class Progress:
    """A context manager; `update` may be called from any thread."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._state: ClusterState | None = None
        self._seen: dict[str, str] = {}
        self._live = Live(
            console=console, get_renderable=self._table, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def update(self, state: ClusterState) -> None:
        self._state = state
        if state.status != "starting":
            self._live.stop()
        for name, instance in state.instances.items():
            line = change_text(name, instance)
            if line and self._seen.get(name) != line:
                self._seen[name] = line
                say(self._console, line)

    def _table(self) -> Table:
        if self._state is None:
            return Table.grid()
        return state_table(self._state, with_last_line=True)


def change_text(name: str, instance: InstanceState) -> str:
    """The line that tells of the instance's present state; empty if there is nothing to tell."""
    if instance.status == "starting" and instance.pid is not None:
        return f"{name}: starting, pid {instance.pid}, log {instance.log}"
    if instance.status == "ready":
        return f"{name}: ready after {instance.started_after_s or 0:.1f} s at {instance.url}"
    if instance.status == "exited":
        return f"{name}: {instance.exit_text}; it is not restarted; log {instance.log}"
    return ""


def state_table(state: ClusterState, *, with_last_line: bool = False) -> Table:
    # Expanded, the last line takes what the others leave; else rich shortens all of them for it.
    table = Table(box=None, pad_edge=False, expand=with_last_line)
    for column in ("instance", "role", "model", "state", "time", "pid", "url"):
        table.add_column(column, no_wrap=True)
    with_metrics = any(instance.metrics_url for instance in state.instances.values())
    if with_metrics:
        table.add_column("metrics", no_wrap=True)
    if with_last_line:
        table.add_column("log", no_wrap=True, overflow="ellipsis", style="dim", ratio=1)
    for name, instance in state.instances.items():
        row = [
            escape(name),
            instance.role,
            escape(instance.model),
            f"[{_COLOURS[instance.status]}]{instance.exit_text or instance.status}[/]",
            _time_text(instance),
            "attached" if instance.log is None else str(instance.pid or ""),
            instance.url,
        ]
        if with_metrics:
            row.append(instance.metrics_url or "")
        if with_last_line:
            busy = instance.status == "starting" and instance.log is not None
            row.append(escape(last_line_of(Path(instance.log))) if busy and instance.log else "")
        table.add_row(*row)
    return table


def _time_text(instance: InstanceState) -> str:
    if instance.started_after_s is not None:
        return f"{instance.started_after_s:.1f} s"
    if instance.status == "starting" and instance.started_unix_s:
        return f"{time.time() - instance.started_unix_s:.0f} s"
    return ""
