"""A running cluster as its coordinator sees it, for `shadowprefill status --url`.

Pure: shapes in, tables out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from coordinator.plain_text import in_cell
from coordinator.session_tables import duration

if TYPE_CHECKING:
    from coordinator.control_shapes import ClusterSummary, InstanceList, InstanceRow

_COLOURS: Final = {"healthy": "green", "suspect": "yellow", "draining": "yellow", "drained": "dim"}


def cluster_lines(cluster: ClusterSummary) -> list[str]:
    """How it is, what it does, and what is wrong with each model that is not ready."""
    shadow = cluster.shadow
    return [
        f"{'ready' if cluster.ready else 'not ready'}, up {duration(cluster.uptime_s)}, version "
        f"{cluster.version}; {cluster.healthy_instances} of {cluster.instances} instances healthy",
        f"{cluster.sessions:,} sessions, {cluster.calls_in_flight:,} calls running; shadow work "
        f"({cluster.controller.value}): {shadow.computed_tokens:,} tokens computed, "
        f"{shadow.used_tokens:,} used",
        *(
            f"{in_cell(name)}: {in_cell(model.why_not or 'not ready')}"
            for name, model in cluster.models.items()
            if not model.ready
        ),
    ]


def instance_table(instances: InstanceList) -> Table:
    # Expanded, the last error takes what the others leave; else rich cuts all of them for it.
    table = Table(box=None, pad_edge=False, expand=True)
    for name in ("instance", "role", "model", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("calls", "tokens"):
        table.add_column(name, no_wrap=True, justify="right")
    table.add_column("url", no_wrap=True)
    table.add_column("last error", no_wrap=True, overflow="ellipsis", ratio=1)
    for row in instances.data:
        table.add_row(*_cells(row))
    return table


def _cells(row: InstanceRow) -> list[Text | str]:
    return [
        in_cell(row.name),
        row.role.value,
        in_cell(row.model),
        Text(row.state, _COLOURS.get(row.state, "red")),
        f"{row.inflight_calls:,}",
        f"{row.inflight_tokens:,}",
        row.url,
        in_cell(row.last_error or ""),
    ]
