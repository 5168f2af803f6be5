"""What a controller changed against `off`: matched calls, differences, the tax that it removed.

Two calls match if they have the same key and repeat at the same load: the same arrival, lengths and
prompt. Only pairs that ended well on both sides are compared; failures are counted beside.

The floor of a switch call's TTFT is `stayed`: the calls of the same cells, under `off`, whose model
also had the call before. They prefill the new input alone, under the same load: what a switch would
cost if it were none. A second, lower floor, `isolated`, is what calibration says that the new input
would cost on an idle engine; no controller can reach it under load.

Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.live.bootstrap import Interval, difference, percent_difference, removed_share
from bench.live.picks import e2el, meets_slos, normal, routed, stayed, switched, tpot, ttft

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.live.records import Calibration, CallRow, CellResult

MAX_HALF_WIDTH_PERCENT = 10.0
MAX_HALF_WIDTH_POINTS = 5.0
"""Of attainment: a wider interval could hide a loss that matters."""

Pairs = list[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    metric: str
    unit: str
    """`%` of `off`, or `points`."""
    pairs: int
    interval: Interval | None
    limit: float

    @property
    def outcome(self) -> str:
        """An interval that is too wide says nothing, wherever it lies."""
        if self.interval is None or self.interval.half_width > self.limit:
            return "inconclusive"
        if self.interval.low > 0:
            return "higher"
        return "lower" if self.interval.high < 0 else "no difference"

    def to_json(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "unit": self.unit,
            "pairs": self.pairs,
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
    pick: Callable[[CallRow], float | None],
) -> Pairs:
    """`off` first; only of repeats that both have."""
    first = _by_key(off, wanted, pick)
    second = _by_key(other, wanted, pick)
    return [(first[key], second[key]) for key in first if key in second]


def _by_key(
    cells: Sequence[CellResult],
    wanted: Callable[[CallRow], bool],
    pick: Callable[[CallRow], float | None],
) -> dict[str, float]:
    found = {}
    for cell in cells:
        for row in cell.rows:
            if row.ok and wanted(row) and (value := pick(row)) is not None:
                found[row.key] = value
    return found


def compare(
    off: Sequence[CellResult], other: Sequence[CellResult], calibration: Calibration
) -> dict[str, Difference]:
    """By metric."""
    picks: dict[str, tuple[Callable[[CallRow], bool], Callable[[CallRow], float | None]]] = {
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
            pairs=len(pairs),
            interval=percent_difference(pairs),
            limit=MAX_HALF_WIDTH_PERCENT,
        )
    attained = _attained(off, other, calibration)
    out["normal_slo_attainment"] = Difference(
        metric="normal_slo_attainment",
        unit="points",
        pairs=len(attained),
        interval=difference(attained),
        limit=MAX_HALF_WIDTH_POINTS,
    )
    return out


def _attained(
    off: Sequence[CellResult], other: Sequence[CellResult], calibration: Calibration
) -> Pairs:
    """In points. A request that failed counts, as one that met nothing."""
    sides = []
    for cells in (off, other):
        rows = [row for cell in cells for row in cell.rows if normal(row)]
        sides.append({row.key: 100.0 * meets_slos(row, calibration) for row in rows})
    first, second = sides
    return [(first[key], second[key]) for key in first if key in second]


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
    if not pairs:
        return {}
    floors = {
        "stayed": _stayed_ms(off, other),
        "isolated": _isolated_ms(off, calibration),
    }
    return {
        name: Tax(
            off_ms=sum(first for first, _ in pairs) / len(pairs),
            on_ms=sum(second for _, second in pairs) / len(pairs),
            floor_ms=sum(lowest) / len(lowest),
            floor=name,
            removed=removed_share(pairs, lowest),
        )
        for name, lowest in floors.items()
        if lowest
    }


def _stayed_ms(off: Sequence[CellResult], other: Sequence[CellResult]) -> list[float]:
    """Under `off`, in the repeats that are compared."""
    repeats = {cell.facts.repeat for cell in other}
    return [
        row.ttft_ms
        for cell in off
        if cell.facts.repeat in repeats
        for row in cell.rows
        if row.ok and stayed(row)
    ]


def _isolated_ms(off: Sequence[CellResult], calibration: Calibration) -> list[float]:
    """A stayed call's own uncached tokens, on an engine that has nothing else to do."""
    return [
        1e3 * calibration.models[row.model].prefill_s(row.prompt_tokens - row.cached_tokens)
        for cell in off
        for row in cell.rows
        if row.ok and stayed(row)
    ]
