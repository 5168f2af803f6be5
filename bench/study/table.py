"""Tables for a terminal: one run, and several approaches beside each other. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from bench.study.compare import BY_KEY, METRICS, estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.study.approaches import ApproachName
    from bench.study.compare import Estimate
    from bench.study.records import ApproachResult, CellResult, Sums

COMPARED = (
    "switch_latency_reduction", "switch_ttft_reduction", "llm_latency_reduction",
    "token_cost_reduction", "hit_pct", "switch_hit_pct", "energy_per_good_change",
    "slo_attainment_points", "unused_shadow_pct",
)  # fmt: skip


def run_table(result: ApproachResult, title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("session calls", "calls", "TTFT s", "latency s", "hit", "token cost $"):
        table.add_column(name, justify="left" if name == "session calls" else "right")
    rows = {"all": result.all_calls, "switch calls": result.switch_calls}
    rows |= {f"  to {name}": one for name, one in result.switch_calls_by_model.items()}
    for name, sums in rows.items():
        table.add_row(name, *_sums_cells(sums))
    return table


def run_lines(result: ApproachResult) -> list[str]:
    """What is told of everything but the calls of sessions."""
    work, lines = result.work, []
    if result.normal is not None:
        normal = result.normal
        lines.append(
            f"normal traffic: {normal.requests} requests, mean TTFT "
            f"{1e3 * normal.ttft_s / normal.requests:.0f} ms, mean TPOT "
            f"{1e3 * normal.tpot_s / normal.requests:.1f} ms, within both SLOs "
            f"{100 * normal.meeting_slos / normal.requests:.2f}%"
        )
    lines.append(
        f"instances busy {100 * work.busy_share:.0f}% of the time, {work.gpus} GPUs, "
        f"{work.energy_j / max(1, work.good_requests):.0f} J per good request (power is assumed)"
    )
    if work.shadow_computed_tokens:
        lines.append(
            f"shadow tokens: {work.shadow_computed_tokens} computed, {work.shadow_used_tokens} used"
        )
    return lines


def compare_table(cells: Sequence[CellResult], names: Sequence[ApproachName], title: str) -> Table:
    """Mean and standard error over the cells; the first approach is the baseline."""
    table = Table(title=title, title_justify="left")
    table.add_column(f"against {names[0]}")
    for name in names[1:]:
        table.add_column(str(name), justify="right")
    for key in COMPARED:
        metric = BY_KEY[key]
        row = [
            shown(
                estimate([metric.of(cell.results[name], cell.results[names[0]]) for cell in cells])
            )
            for name in names[1:]
        ]
        table.add_row(f"{metric.label} ({metric.unit})", *row)
    return table


def compare_json(
    cells: Sequence[CellResult], names: Sequence[ApproachName]
) -> dict[str, dict[str, dict[str, float | int | None] | None]]:
    """By approach and metric."""
    base = names[0]
    return {
        str(name): {
            metric.key: estimate_json(
                estimate([metric.of(cell.results[name], cell.results[base]) for cell in cells])
            )
            for metric in METRICS
        }
        for name in names
    }


def estimate_json(found: Estimate | None) -> dict[str, float | int | None] | None:
    if found is None:
        return None
    error = found.standard_error
    return {
        "mean": round(found.mean, 4),
        "standard_error": None if error is None else round(error, 4),
        "cells": found.cells,
    }


def shown(found: Estimate | None) -> str:
    if found is None:
        return "-"
    if found.standard_error is None:
        return f"{found.mean:.2f}"
    return f"{found.mean:.2f} ±{found.standard_error:.2f}"


def _sums_cells(sums: Sums) -> list[str]:
    if not sums.calls:
        return ["0", "-", "-", "-", "-"]
    return [
        str(sums.calls),
        f"{sums.ttft_s / sums.calls:.3f}",
        f"{sums.latency_s / sums.calls:.3f}",
        f"{100 * sums.cached_tokens / sums.prompt_tokens:.1f}%",
        f"{sums.cost_dollars:.3f}",
    ]
