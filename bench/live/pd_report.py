"""The result where P and D are apart: TTFT of switch calls under shadow off, on P only, with D's
pulls, and the four parts that it is made of.

Reads finished cells only. Pure."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from rich.table import Table

from bench.live.cells import system_name
from bench.live.compare import compare, tax
from bench.live.figures import figures, spread
from bench.live.picks import stayed, switched, values
from bench.live.report import MEASURED, checks
from bench.live.ttft_split import PARTS
from policy.vocabulary import Controller

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.live.records import Calibration, CallRow, CellResult
    from bench.live.report import Run

System = tuple[str, bool]
ORDER: tuple[System, ...] = (
    (Controller.OFF.value, True),
    (Controller.HARVEST_SLO.value, False),
    (Controller.HARVEST_SLO.value, True),
)
"""Controller, and whether D pulls."""
SPLIT = (
    "switch_ttft_parts_ms, stayed_ttft_parts_ms: mean TTFT in its parts, of calls whose engines "
    "told them: queue (client, coordinator, P before the first iteration), prefill (P), transfer "
    "(D before the first iteration: pull and place), decode (D's first iteration and its answer)."
)


def pd_document(run: Run) -> dict[str, Any]:
    groups = _grouped(run.cells)
    off = {load: cells for load, system, cells in groups if system == ORDER[0]}
    return {
        "cells": [
            {
                **figures(cells, run.calibration, run.settings.window_s, run.cap_ms),
                "system": system_name(system[0], pushes=system[1]),
                "pushes": system[1],
                "switch_ttft_parts_ms": parts(cells, switched),
                "stayed_ttft_parts_ms": parts(cells, stayed),
            }
            for _, system, cells in groups
        ],
        "against_off": [
            _against(off[load], system, cells, run.calibration)
            for load, system, cells in groups
            if system != ORDER[0] and load in off
        ],
        "cells_done": len(run.cells),
        "cells_wanted": len(run.wanted),
        "checks": checks(run.cells),
        "settings": asdict(run.settings),
        "conditions": run.conditions,
        "measured": f"{MEASURED} {SPLIT}",
    }


def parts(cells: Sequence[CellResult], wanted: Callable[[CallRow], bool]) -> dict[str, Any] | None:
    """None: no engine told."""
    found = {
        part: [values(cell.rows, wanted, attrgetter(part)) for cell in cells] for part in PARTS
    }
    told = {part: spread(per_repeat) for part, per_repeat in found.items()}
    return told if all(told.values()) else None


def pd_table(cells: Sequence[dict[str, Any]], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    names = (
        *("load", "system", "switch\ncalls", "switch\nTTFT ms", *_titles()),
        *("call that\nstays ms", "shadow tokens\nused/computed", "failed"),
    )
    for name in names:
        table.add_column(name, justify="left" if name == "system" else "right")
    for cell in cells:
        table.add_row(*_row(cell))
    return table


def _titles() -> list[str]:
    return [f"{part.removesuffix('_ms')}\nms" for part in PARTS]


def _row(cell: dict[str, Any]) -> list[str]:
    switch, split = cell["switch_ttft_ms"], cell["switch_ttft_parts_ms"]
    used, computed = cell["shadow_tokens_used"]["total"], cell["shadow_tokens_computed"]["total"]
    failed = sum(one["total"] for one in cell["failed_calls"].values())
    return [
        f"{cell['load']:g}",
        cell["system"],
        "0" if switch is None else str(switch["calls"]),
        _mean(switch),
        *("-" if split is None else _mean(split[part]) for part in PARTS),
        _mean(cell["stayed_ttft_ms"]),
        f"{used}/{computed}",
        str(failed),
    ]


def _mean(value: dict[str, Any] | None) -> str:
    return "-" if value is None else f"{value['mean']:.0f}"


def _against(
    off: Sequence[CellResult], system: System, cells: Sequence[CellResult], calibration: Calibration
) -> dict[str, Any]:
    return {
        "load": cells[0].facts.load,
        "system": system_name(system[0], pushes=system[1]),
        "differences": [seen.to_json() for seen in compare(off, cells, calibration).values()],
        "switch_tax": [found.to_json() for found in tax(off, cells, calibration).values()],
    }


def _grouped(cells: Sequence[CellResult]) -> list[tuple[float, System, list[CellResult]]]:
    def place(cell: CellResult) -> tuple[float, int, int]:
        facts = cell.facts
        return facts.load, ORDER.index((facts.controller, facts.pushes)), facts.repeat

    groups = groupby(sorted(cells, key=place), key=lambda cell: place(cell)[:2])
    return [(load, ORDER[index], list(found)) for (load, index), found in groups]
