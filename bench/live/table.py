"""One row per load and controller, for a terminal. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS = (
    "load", "controller", "repeats", "switch\nTTFT ms", "call that\nstays ms", "LLM call\nms",
    "normal\nTTFT ms", "normal\nTPOT ms", "SLOs\nmet", "goodput\n1/s", "hit",
    "shadow tokens\nused/computed", "longest wait\nms (cap)", "failed",
)  # fmt: skip


def live_table(cells: Sequence[dict[str, Any]], title: str) -> Table:
    """`cells` as in the JSON document."""
    table = Table(title=title, title_justify="left")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "controller" else "right")
    load = None
    for cell in cells:
        if load not in (None, cell["load"]):
            table.add_section()
        load = cell["load"]
        table.add_row(*_row(cell))
    return table


def _row(cell: dict[str, Any]) -> list[str]:
    wait, attained = cell["max_arrival_wait_ms"], cell["normal_slo_attainment"]
    used, computed = cell["shadow_tokens_used"]["total"], cell["shadow_tokens_computed"]["total"]
    failed = sum(one["total"] for one in cell["failed_calls"].values())
    hit = cell["kv_cache_hit_percent"]
    return [
        f"{cell['load']:g}",
        cell["controller"],
        str(len(cell["repeats"])),
        *(
            _spread(cell[name])
            for name in (
                *("switch_ttft_ms", "stayed_ttft_ms", "llm_call_ms"),
                *("normal_ttft_ms", "normal_tpot_ms"),
            )
        ),
        "-" if attained is None else f"{100 * attained['mean']:.1f}%",
        f"{cell['goodput_per_s']['mean']:.2f}",
        "-" if hit is None else f"{hit:.0f}%",
        f"{used}/{computed}",
        "-" if wait is None else f"{wait['max']:.0f} ({cell['cap_ms']:.0f})",
        str(failed),
    ]


def _spread(value: dict[str, Any] | None) -> str:
    """Mean, and half of its 95% interval."""
    if value is None:
        return "-"
    return f"{value['mean']:.0f} ±{(value['high'] - value['low']) / 2:.0f}"
