"""The rows as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from bench.bandwidth.rows import AIMS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SHOWN = (
    "name", "Block Size (B)", "Batch Size", "descriptors", "B/W (GB/Sec)", "median_gb_per_s",
    "Avg Lat. (us)", "Avg Prep (us)", "P99 Prep (us)", "Avg Post (us)", "P99 Post (us)",
    "Avg Tx (us)", "P99 Tx (us)",
)  # fmt: skip


def bandwidth_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="KV transfers (GB = 1e9 bytes)", title_justify="left")
    for name in _SHOWN:
        title = {"median_gb_per_s": "median", "descriptors": "desc."}.get(name, name)
        table.add_column(title.replace(" (", "\n("), justify="left" if name == "name" else "right")
    for row in rows:
        if "skipped" not in row:
            table.add_row(*(_cell(row[name]) for name in _SHOWN))
    return table


def closing_lines(result: Mapping[str, Any]) -> list[str]:
    rows = [row for row in result["rows"] if "skipped" in row]
    shape = result["ratio_shape"]
    where = f"{shape['Batch Size']} x {shape['Block Size (B)']:,} B"
    return [
        *(f"{row['name']}: skipped: {row['skipped']}" for row in rows),
        *(
            f"{name}: {'not measured' if value is None else value} (aim {AIMS[name]}, at {where})"
            for name, value in result["ratios"].items()
        ),
        *(f"WARNING: {text}" for text in result["warnings"]),
    ]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
