"""What a controller changed against `off`: matched calls, differences, the tax that it removed.

Two calls match if they have the same key and repeat at the same load: the same arrival, lengths and
prompt. Latencies are compared of pairs that ended well on both sides. A call that failed has none:
where more of them failed than under `off`, the mean leaves out the worst and says nothing.

The floor of a switch call's TTFT is `stayed`: the calls of the same cells, under `off`, whose model
also had the call before. They prefill the new input alone, under the same load: what a switch would
cost if it were none. A second, lower floor, `isolated`, is what calibration says that the new input
would cost on an idle engine; no controller can reach it under load.

Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from bench.live.bootstrap import (
    Interval,
    Pair,
    difference,
    percent_difference,
    removed_share,
)
from bench.live.picks import e2el, meets_slos, normal, routed, stayed, switched, tpot, ttft

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.live.records import Calibration, CallRow, CellResult

MAX_HALF_WIDTH_PERCENT = 10.0
MAX_HALF_WIDTH_POINTS = 5.0
"""Of attainment: a wider interval could hide a loss that matters."""

Pairs = list[list[Pair]]
"""A list per repeat."""
Pick = Callable[["CallRow"], "float | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    metric: str
    unit: str
    """`%` of `off`, or `points`."""
    pairs: int
    interval: Interval | None
    limit: float
    failed_off: int = 0
    failed: int = 0
    """Calls without a value because they failed, in the repeats that are compared."""

    @property
    def outcome(self) -> str:
        """An interval that is too wide says nothing, wherever it lies."""
        if self.interval is None or self.interval.half_width > self.limit:
            return "inconclusive"
        if self.failed > self.failed_off:
            return "inconclusive"
        if self.interval.low > 0:
            return "higher"
        return "lower" if self.interval.high < 0 else "no difference"

    def to_json(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "unit": self.unit,
            "pairs": self.pairs,
            "failed_off": self.failed_off,
            "failed": self.failed,
            **interval_json(self.interval),
            "outcome": self.outcome,
        }


def interval_json(interval: Interval | None) -> dict[str, float | None]:
    if interval is None:
        return {"value": None, "low": None, "high": None, "half_width": None}
    return {
        "value": round(interval.value, 3),
        "low": round(interval.low, 3),
        "high": round(interval.high, 3),
        "half_width": round(interval.half_width, 3),
    }


def matched(
    off: Sequence[CellResult],
    other: Sequence[CellResult],
    wanted: Callable[[CallRow], bool],
    pick: Pick,
) -> Pairs:
    """`off` first."""
    return _paired(off, other, lambda row: pick(row) if row.ok and wanted(row) else None)


def _paired(off: Sequence[CellResult], other: Sequence[CellResult], pick: Pick) -> Pairs:
    second = {cell.facts.repeat: _by_key(cell, pick) for cell in other}
    pairs = []
    for cell in off:
        values = second.get(cell.facts.repeat, {})
        first = _by_key(cell, pick)
        pairs.append([(first[key], values[key]) for key in first if key in values])
    return pairs


def _by_key(cell: CellResult, pick: Pick) -> dict[str, float]:
    picked = ((row.key, pick(row)) for row in cell.rows)
    return {key: value for key, value in picked if value is not None}


def compare(
    off: Sequence[CellResult], other: Sequence[CellResult], calibration: Calibration
) -> dict[str, Difference]:
    """By metric."""
    picks: dict[str, tuple[Callable[[CallRow], bool], Pick]] = {
        "switch_ttft_ms": (switched, ttft),
        "switch_call_ms": (switched, e2el),
        "stayed_ttft_ms": (stayed, ttft),
        "llm_call_ms": (routed, e2el),
        "normal_ttft_ms": (normal, ttft),
        "normal_tpot_ms": (normal, tpot),
    }
    out = {}
    for metric, (wanted, pick) in picks.items():
        pairs = matched(off, other, wanted, pick)
        out[metric] = Difference(
            metric=metric,
            unit="%",
            pairs=sum(map(len, pairs)),
            interval=percent_difference(pairs),
            limit=MAX_HALF_WIDTH_PERCENT,
            failed_off=_failed(off, other, wanted),
            failed=_failed(other, off, wanted),
        )
    # A request that failed counts, as one that met nothing.
    attained = _paired(
        off, other, lambda row: 100.0 * meets_slos(row, calibration) if normal(row) else None
    )
    out["normal_slo_attainment"] = Difference(
        metric="normal_slo_attainment",
        unit="points",
        pairs=sum(map(len, attained)),
        interval=difference(attained),
        limit=MAX_HALF_WIDTH_POINTS,
    )
    return out


def _failed(
    cells: Sequence[CellResult], beside: Sequence[CellResult], wanted: Callable[[CallRow], bool]
) -> int:
    return sum(
        wanted(row) and not row.ok for cell in _of_repeats(cells, beside) for row in cell.rows
    )


def _of_repeats(cells: Sequence[CellResult], beside: Sequence[CellResult]) -> list[CellResult]:
    """Those whose repeat the other side has too."""
    repeats = {cell.facts.repeat for cell in beside}
    return [cell for cell in cells if cell.facts.repeat in repeats]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tax:
    """What a switch costs more than a call that stays, and how much of it was removed."""

    off_ms: float
    on_ms: float
    floor_ms: float
    floor: str
    removed: Interval | None

    def to_json(self) -> dict[str, Any]:
        return {
            "off_ms": round(self.off_ms, 1),
            "on_ms": round(self.on_ms, 1),
            "floor_ms": round(self.floor_ms, 1),
            "floor": self.floor,
            **{f"removed_share_{name}": at for name, at in interval_json(self.removed).items()},
        }


def tax(
    off: Sequence[CellResult], other: Sequence[CellResult], calibration: Calibration
) -> dict[str, Tax]:
    """By floor: `stayed` and `isolated`."""
    pairs = matched(off, other, switched, ttft)
    every = [pair for one in pairs for pair in one]
    beside = _of_repeats(off, other)
    floors = {
        "stayed": [_of_stayed(cell, ttft) for cell in beside],
        "isolated": [_of_stayed(cell, _isolated_ms(calibration)) for cell in beside],
    }
    if not every or not any(floors["stayed"]):
        return {}
    return {
        name: Tax(
            off_ms=fmean(first for first, _ in every),
            on_ms=fmean(second for _, second in every),
            floor_ms=fmean(value for one in lowest for value in one),
            floor=name,
            removed=removed_share(pairs, lowest),
        )
        for name, lowest in floors.items()
    }


def _of_stayed(cell: CellResult, pick: Callable[[CallRow], float]) -> list[float]:
    return [pick(row) for row in cell.rows if row.ok and stayed(row)]


def _isolated_ms(calibration: Calibration) -> Callable[[CallRow], float]:
    """A stayed call's own uncached tokens, on an engine that has nothing else to do."""

    def pick(row: CallRow) -> float:
        model = calibration.models[row.model]
        return 1e3 * model.prefill_s(row.prompt_tokens - row.cached_tokens)

    return pick
