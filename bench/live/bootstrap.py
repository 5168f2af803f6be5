"""How sure a difference is: percentile bootstrap over matched calls, and over whole repeats.

A pair is the same call (arrival, lengths, prompt) under two controllers, so what the calls differ
in among themselves does not count, only what the controllers did to them. Calls of one cell are not
independent: they queue behind each other and share the machine's mood. So whole repeats are drawn
as well, and the wider interval counts; of a single repeat only its calls can be drawn.

Values come as a list per repeat. Pure: the seed is fixed, the same pairs give the same interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Value = TypeVar("Value")
Pair = tuple[float, float]
Repeats: TypeAlias = "Sequence[Sequence[Value]]"

RESAMPLES = 4000
SEED = 1
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


def mean_interval(values: Repeats[float]) -> Interval | None:
    rows = _rows(values)
    return _interval(rows, lambda means: means[:, 0]) if rows else None


def percent_difference(pairs: Repeats[Pair]) -> Interval | None:
    """100 x (mean of the second - mean of the first) / mean of the first."""
    rows = _rows(pairs)
    if not sum(float(one[:, 0].sum()) for one in rows):
        return None
    return _interval(rows, lambda means: 100 * (means[:, 1] - means[:, 0]) / means[:, 0])


def difference(pairs: Repeats[Pair]) -> Interval | None:
    """Mean of the second - mean of the first."""
    rows = _rows(pairs)
    return _interval(rows, lambda means: means[:, 1] - means[:, 0]) if rows else None


def removed_share(pairs: Repeats[Pair], floor: Repeats[float]) -> Interval | None:
    """(off - on) / (off - floor); None if there is no tax to remove.

    The floor's calls are others than the pairs': they are resampled on their own."""
    rows, floor_rows = _rows(pairs), _rows(floor)
    if not rows or not floor_rows:
        return None
    ends = []
    for draw in (_calls_drawn, _repeats_drawn):
        drawn, lowest = draw(rows, SEED), draw(floor_rows, SEED + 1)[:, 0]
        taxes = drawn[:, 0] - lowest
        if np.quantile(taxes, (1 - LEVEL) / 2) <= 0:
            return None
        ends.append(_ends((drawn[:, 0] - drawn[:, 1]) / taxes))
    off, on = np.concatenate(rows).mean(axis=0)
    value = (off - on) / (off - np.concatenate(floor_rows).mean())
    return Interval(float(value), *_wider(ends))


def _rows(repeats: Repeats[float] | Repeats[Pair]) -> list[np.ndarray]:
    """A table per repeat that has any."""
    return [np.asarray(one, dtype=float).reshape(len(one), -1) for one in repeats if one]


def _interval(
    repeats: Sequence[np.ndarray], statistic: Callable[[np.ndarray], np.ndarray]
) -> Interval:
    value = statistic(np.concatenate(repeats).mean(axis=0)[None, :])[0]
    ends = [_ends(statistic(draw(repeats, SEED))) for draw in (_calls_drawn, _repeats_drawn)]
    return Interval(float(value), *_wider(ends))


def _calls_drawn(repeats: Sequence[np.ndarray], seed: int) -> np.ndarray:
    """Column means of RESAMPLES draws of whole rows."""
    rows = np.concatenate(repeats)
    chosen = np.random.default_rng(seed).integers(0, len(rows), size=(RESAMPLES, len(rows)))
    means: np.ndarray = rows[chosen].mean(axis=1)
    return means


def _repeats_drawn(repeats: Sequence[np.ndarray], seed: int) -> np.ndarray:
    """The same of RESAMPLES draws of whole repeats."""
    count = len(repeats)
    chosen = np.random.default_rng(seed).integers(0, count, size=(RESAMPLES, count))
    sums = np.stack([rows.sum(axis=0) for rows in repeats])
    sizes = np.array([[len(rows)] for rows in repeats])
    means: np.ndarray = sums[chosen].sum(axis=1) / sizes[chosen].sum(axis=1)
    return means


def _ends(values: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(low), float(high)


def _wider(ends: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return max(ends, key=lambda one: one[1] - one[0])
