"""The figures of one load and controller: spreads over all its calls, values per repeat.

Keys are those of the issue and of `vllm bench serve`. Pure."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.live.bootstrap import mean_interval
from bench.live.picks import (
    e2el,
    meets_slos,
    normal,
    routed,
    stayed,
    switched,
    tpot,
    ttft,
    values,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.live.records import Calibration, CallRow, CellResult, EngineFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    calls: int
    mean: float
    low: float
    high: float
    """95% interval of the mean."""
    std: float
    median: float
    p90: float
    p95: float
    p99: float
    per_repeat: tuple[float | None, ...]


def spread(per_repeat: Sequence[Sequence[float]]) -> dict[str, Any] | None:
    everything = [value for one in per_repeat for value in one]
    interval = mean_interval(per_repeat)
    if interval is None:
        return None
    p50, p90, p95, p99 = (float(q) for q in np.quantile(everything, (0.5, 0.9, 0.95, 0.99)))
    return _rounded(
        Spread(
            calls=len(everything),
            mean=interval.value,
            low=interval.low,
            high=interval.high,
            std=statistics.pstdev(everything),
            median=p50,
            p90=p90,
            p95=p95,
            p99=p99,
            per_repeat=tuple(statistics.mean(one) if one else None for one in per_repeat),
        )
    )


def figures(
    cells: Sequence[CellResult], calibration: Calibration, window_s: float, cap_ms: float
) -> dict[str, Any]:
    """`cells`: all repeats of one load and controller."""

    def of(
        wanted: Callable[[CallRow], bool], pick: Callable[[CallRow], float | None]
    ) -> dict[str, Any] | None:
        return spread([values(cell.rows, wanted, pick) for cell in cells])

    first = cells[0].facts
    return {
        "load": first.load,
        "controller": first.controller,
        "repeats": [cell.facts.repeat for cell in cells],
        "switch_ttft_ms": of(switched, ttft),
        "switch_call_ms": of(switched, e2el),
        "stayed_ttft_ms": of(stayed, ttft),
        "llm_call_ttft_ms": of(routed, ttft),
        "llm_call_ms": of(routed, e2el),
        "normal_ttft_ms": of(normal, ttft),
        "normal_tpot_ms": of(normal, tpot),
        "normal_slo_attainment": _attainment(cells, calibration),
        "goodput_per_s": _goodput(cells, calibration, window_s),
        "kv_cache_hit_percent": _hit_percent(cells),
        "shadow_tokens_computed": _total(cells, lambda cell: cell.facts.computed_tokens),
        "shadow_tokens_used": _total(cells, lambda cell: cell.facts.shadow_tokens_used),
        "max_arrival_wait_ms": _worst(cells, lambda one: one.max_arrival_wait_ms),
        "p99_arrival_wait_ms": p99_arrival_wait_ms(cells),
        "max_foreground_wait_ms": _worst(cells, lambda one: one.max_foreground_wait_ms),
        "shadow_step_p99_ms": _worst(cells, lambda one: one.shadow_step_p99_ms),
        "cap_ms": cap_ms,
        "failed_calls": {
            "normal": _total(cells, lambda cell: _failed(cell, normal)),
            "routed": _total(cells, lambda cell: _failed(cell, routed)),
        },
        "client_cpu_share": _total(cells, lambda cell: cell.facts.client_cpu_share, mean=True),
        "coordinator_cpu_share": _total(
            cells, lambda cell: cell.facts.coordinator_cpu_share, mean=True
        ),
        "client_late_ms_p99": _late(cells),
        "energy_j_per_good_request": _energy(cells, calibration),
        **_serve_keys(cells, calibration, window_s),
    }


def _attainment(cells: Sequence[CellResult], calibration: Calibration) -> dict[str, Any] | None:
    per_repeat = [
        [float(meets_slos(row, calibration)) for row in cell.rows if normal(row)] for cell in cells
    ]
    return spread(per_repeat)


def _goodput(
    cells: Sequence[CellResult], calibration: Calibration, window_s: float
) -> dict[str, Any]:
    return _total(cells, lambda cell: _good(cell, calibration) / window_s, mean=True)


def _good(cell: CellResult, calibration: Calibration) -> int:
    return sum(meets_slos(row, calibration) for row in cell.rows if normal(row))


def _failed(cell: CellResult, wanted: Callable[[CallRow], bool]) -> int:
    return sum(not row.ok for row in cell.rows if wanted(row))


def _total(
    cells: Sequence[CellResult], pick: Callable[[CellResult], float], *, mean: bool = False
) -> dict[str, Any]:
    per_repeat = [pick(cell) for cell in cells]
    if mean:
        return _rounded_dict({"mean": statistics.mean(per_repeat), "per_repeat": per_repeat})
    return _rounded_dict({"total": sum(per_repeat), "per_repeat": per_repeat})


def _hit_percent(cells: Sequence[CellResult]) -> float | None:
    rows = [row for cell in cells for row in cell.rows if routed(row) and row.ok]
    prompt = sum(row.prompt_tokens for row in rows)
    return round(100 * sum(row.cached_tokens for row in rows) / prompt, 2) if prompt else None


def _worst(
    cells: Sequence[CellResult], pick: Callable[[EngineFacts], float]
) -> dict[str, Any] | None:
    """None: the engines do not tell."""
    told = [cell.facts.engines for cell in cells]
    per_repeat = [None if one is None else pick(one) for one in told]
    known = [value for value in per_repeat if value is not None]
    return _rounded_dict({"max": max(known), "per_repeat": per_repeat}) if known else None


def p99_arrival_wait_ms(cells: Sequence[CellResult]) -> float | None:
    """Of all waits behind iterations with shadow tokens; None: no wait, or nobody tells."""
    told = [cell.facts.engines for cell in cells]
    waits = [wait for one in told if one is not None for wait in one.arrival_waits_ms]
    return round(float(np.quantile(waits, 0.99)), 2) if waits else None


def _late(cells: Sequence[CellResult]) -> float:
    late = [row.late_ms for cell in cells for row in cell.rows if normal(row)]
    return round(float(np.quantile(late, 0.99)), 2) if late else 0.0


def _energy(cells: Sequence[CellResult], calibration: Calibration) -> float | None:
    """None: no GPU that says what it uses."""
    joules = [cell.facts.energy_j for cell in cells]
    good = sum(_good(cell, calibration) for cell in cells)
    known = [value for value in joules if value is not None]
    return round(sum(known) / good, 3) if good and len(known) == len(joules) else None


def _serve_keys(
    cells: Sequence[CellResult], calibration: Calibration, window_s: float
) -> dict[str, Any]:
    """Of normal traffic, as `vllm bench serve` names them."""
    rows = [row for cell in cells for row in cell.rows if normal(row)]
    done = [row for row in rows if row.ok]
    duration_s = window_s * len(cells)
    good = sum(meets_slos(row, calibration) for row in rows)
    out: dict[str, Any] = {
        "duration": duration_s,
        "completed": len(done),
        "failed": len(rows) - len(done),
        "total_input_tokens": sum(row.prompt_tokens for row in done),
        "total_output_tokens": sum(row.output_tokens for row in done),
        "request_throughput": len(done) / duration_s,
        "request_goodput": good / duration_s,
        "output_throughput": sum(row.output_tokens for row in done) / duration_s,
    }
    series = {
        "ttft": [row.ttft_ms for row in done],
        "tpot": [row.tpot_ms for row in done if row.tpot_ms is not None],
        "itl": [gap for row in done for gap in row.itl_ms],
        "e2el": [row.e2el_ms for row in done],
    }
    for name, found in series.items():
        if found:
            out[f"mean_{name}_ms"] = statistics.mean(found)
            out[f"median_{name}_ms"] = statistics.median(found)
            out[f"std_{name}_ms"] = statistics.pstdev(found)
            out[f"p99_{name}_ms"] = float(np.quantile(found, 0.99))
    return _rounded_dict(out)


def _rounded(value: Spread) -> dict[str, Any]:
    return _rounded_dict(asdict(value))


def _rounded_dict(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _short(value) for name, value in values.items()}


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, list | tuple):
        return [_short(one) for one in value]
    return value
