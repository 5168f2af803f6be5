"""The result of a run: one JSON document from the finished cells, a table and lines for people.

Reads finished cells only, so a run that was cut short reports what it has and says what is missing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from bench.live.compare import compare, tax
from bench.live.figures import figures, p99_arrival_wait_ms
from bench.live.lengths import TRACE
from bench.live.records import to_json
from bench.live.verdicts import Compared, Verdict, verdicts
from policy.vocabulary import Controller

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.live.cells import Cell
    from bench.live.records import Calibration, CellResult
    from bench.live.settings import Settings

ORDER = list(Controller)
MEASURED = (
    "Rows are calls as the client saw them; ttft is first non-empty token minus send, tpot (e2el - "
    "ttft) / (out - 1). normal: Poisson arrivals at the load's share of the measured capacity, "
    "through the coordinator, no session. routed: agent sessions with a two-state Markov route, "
    "recorded answers replayed. Spreads are over all calls of all repeats, low and high the 95% "
    "bootstrap interval of the mean. Differences are paired over the same calls under `off`: a "
    "coordinator and engines whose shadow.controller is off. max_arrival_wait_ms: measured by the "
    "engines, of requests that arrived behind an iteration with shadow tokens; null where engines "
    "write no trace. cap_ms: longest iteration that may carry shadow tokens."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a report is made of."""

    settings: Settings
    calibration: Calibration
    cells: Sequence[CellResult]
    wanted: Sequence[Cell]
    cap_ms: float
    conditions: dict[str, Any]


Group = tuple[float, Controller, list["CellResult"]]


def grouped(cells: Sequence[CellResult]) -> list[Group]:
    """All repeats of a load and controller, loads ascending, controllers in the policy's order."""

    def place(cell: CellResult) -> tuple[float, int, int]:
        facts = cell.facts
        return facts.load, ORDER.index(Controller(facts.controller)), facts.repeat

    groups = groupby(sorted(cells, key=place), key=lambda cell: place(cell)[:2])
    return [(load, ORDER[index], list(found)) for (load, index), found in groups]


def compared(run: Run) -> list[Compared]:
    groups = grouped(run.cells)
    off = {load: cells for load, controller, cells in groups if controller is Controller.OFF}
    return [
        Compared(
            load=load,
            controller=controller,
            differences=compare(off[load], cells, run.calibration),
            taxes=tax(off[load], cells, run.calibration),
            p99_arrival_wait_ms=p99_arrival_wait_ms(cells),
            cap_ms=run.cap_ms,
        )
        for load, controller, cells in groups
        if controller is not Controller.OFF and load in off
    ]


def document(run: Run) -> dict[str, Any]:
    against_off = compared(run)
    window_s = run.settings.window_s
    return {
        "cells": [
            figures(cells, run.calibration, window_s, run.cap_ms)
            for _, _, cells in grouped(run.cells)
        ],
        "against_off": [
            {
                "load": one.load,
                "controller": one.controller.value,
                "differences": [seen.to_json() for seen in one.differences.values()],
                "switch_tax": [found.to_json() for found in one.taxes.values()],
            }
            for one in against_off
        ],
        "verdicts": [asdict(verdict) for verdict in verdicts(against_off)],
        "cells_done": len(run.cells),
        "cells_wanted": len(run.wanted),
        "checks": checks(run.cells),
        "calibration": _calibration_json(run.calibration),
        "settings": asdict(run.settings),
        "trace": TRACE,
        "conditions": run.conditions,
        "measured": MEASURED,
    }


def checks(cells: Sequence[CellResult]) -> dict[str, Any]:
    """What must hold for the comparison to mean anything."""
    digests: dict[str, set[str]] = {}
    recorded: list[bool] = []
    for cell in cells:
        for row in cell.rows:
            if row.kind == "routed" and row.ok:
                digests.setdefault(row.key, set()).add(row.prompt_digest)
                recorded.append(bool(row.output_as_recorded))
    return {
        "prompts_equal": all(len(found) == 1 for found in digests.values()),
        "outputs_as_recorded_share": round(sum(recorded) / len(recorded), 4) if recorded else None,
    }


def verdict_line(verdict: Verdict) -> str:
    load = f"load {verdict.load:g}" if verdict.load else "no load"
    name = verdict.outcome.upper()
    return f"{name:<12} {load}, {verdict.controller}: {verdict.aim}. {verdict.text}"


def _calibration_json(calibration: Calibration) -> dict[str, Any]:
    facts = to_json(calibration)["models"]
    for name, model in calibration.models.items():
        facts[name]["slo_tpot_s"] = model.tpot_slo_s
        facts[name]["slo_ttft_s"] = "max(1, 5 x isolated prefill of the request's own prompt)"
    return {name: facts[name] for name in sorted(facts)}
