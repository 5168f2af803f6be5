"""Turns the rounds of bench.coordinator_overhead into its JSON, its gates and its table."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.load_client import LoadResult

GATE_RPS_SHARE = 0.25
GATE_ADDED_MS = 0.6
AIM_RPS_SHARE = 0.5
AIM_ADDED_MS = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One cell of one round: one system under one kind of load."""

    p50_ms: float
    p99_ms: float
    calls: int
    calls_per_s: float
    events_per_s: float
    cpu_ms_per_call: float
    """Processor time of the router's process per call; 0 for `direct`."""

    @staticmethod
    def of(result: LoadResult, cpu_s: float) -> Sample:
        latencies = sorted(result.latencies_s)
        return Sample(
            p50_ms=percentile(latencies, 0.5) * 1e3,
            p99_ms=percentile(latencies, 0.99) * 1e3,
            calls=len(latencies),
            calls_per_s=result.calls_per_s,
            events_per_s=result.events_per_s,
            cpu_ms_per_call=cpu_s / result.all_calls * 1e3,
        )


Round = dict[str, dict[str, Sample]]
"""System -> cell (`c1`, `c16`, `c64`, `stream`) -> sample."""

Rounds = list[Round]


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    assert ordered, "no call finished in this cell"
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summary(rounds: Rounds) -> dict[str, dict[str, Any]]:
    """Per system: medians over rounds. What is added is the difference within one round."""
    return {system: _of_system(rounds, system) for system in rounds[0]}


def _of_system(rounds: Rounds, system: str) -> dict[str, Any]:
    cells = {cell: _of_cell(rounds, system, cell) for cell in rounds[0][system]}
    return {
        "added_ms_p50_c1": cells["c1"]["added_p50_ms"],
        "added_ms_p99_c64": cells["c64"]["added_p99_ms"],
        "rps_c64": cells["c64"]["calls_per_s"],
        "chunks_per_s": cells["stream"]["events_per_s"],
        "cells": cells,
    }


def _of_cell(rounds: Rounds, system: str, cell: str) -> dict[str, float]:
    measured = {
        name: statistics.median(getattr(one[system][cell], name) for one in rounds)
        for name in Sample.__slots__
    }
    added = {
        f"added_{name}": statistics.median(_added(one, system, cell, name) for one in rounds)
        for name in ("p50_ms", "p99_ms")
    }
    return {name: round(value, 4) for name, value in (measured | added).items()}


def _added(one: Round, system: str, cell: str, name: str) -> float:
    added: float = getattr(one[system][cell], name) - getattr(one["direct"][cell], name)
    return added


def gates(modes: dict[str, Rounds]) -> dict[str, Any]:
    """Ours against vllm-router; the ratio is taken within a round, then its median."""
    out: dict[str, Any] = {"limits": {"rps_share": GATE_RPS_SHARE, "added_ms": GATE_ADDED_MS}}
    out["aims"] = {"rps_share": AIM_RPS_SHARE, "added_ms": AIM_ADDED_MS}
    for mode, rounds in modes.items():
        share = statistics.median(
            one["ours"]["c64"].calls_per_s / one["vllm_router"]["c64"].calls_per_s for one in rounds
        )
        added_ms = statistics.median(_added(one, "ours", "c1", "p50_ms") for one in rounds)
        out[mode] = {
            "rps_share": round(share, 3),
            "added_ms": round(added_ms, 3),
            "passed": share >= GATE_RPS_SHARE and added_ms <= GATE_ADDED_MS,
            "aim_reached": share >= AIM_RPS_SHARE and added_ms <= AIM_ADDED_MS,
        }
    out["passed"] = all(out[mode]["passed"] for mode in modes)
    return out


_ROWS = {
    "added p50 c1 (ms)": ("c1", "added_p50_ms"),
    "added p99 c1 (ms)": ("c1", "added_p99_ms"),
    "added p50 c16 (ms)": ("c16", "added_p50_ms"),
    "added p99 c16 (ms)": ("c16", "added_p99_ms"),
    "added p50 c64 (ms)": ("c64", "added_p50_ms"),
    "added p99 c64 (ms)": ("c64", "added_p99_ms"),
    "requests/s c1": ("c1", "calls_per_s"),
    "requests/s c16": ("c16", "calls_per_s"),
    "requests/s c64": ("c64", "calls_per_s"),
    "CPU ms/request c64": ("c64", "cpu_ms_per_call"),
    "chunks/s c16": ("stream", "events_per_s"),
    "CPU ms/stream c16": ("stream", "cpu_ms_per_call"),
}


def table(mode: str, systems: dict[str, dict[str, Any]]) -> Table:
    """One mode. c16 = 16 connections; CPU is the router's; ratio = ours / vllm-router."""
    out = Table(title=f"{mode} requests, median of rounds", title_justify="left")
    out.add_column("figure")
    for name in (*systems, "ratio"):
        out.add_column(name, justify="right")
    for label, (cell, figure) in _ROWS.items():
        values = {name: one["cells"][cell][figure] for name, one in systems.items()}
        router = values["vllm_router"]
        ratio = f"{values['ours'] / router:.2f}" if router else "-"
        out.add_row(label, *[_shown(value) for value in values.values()], ratio)
    return out


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3f}"
