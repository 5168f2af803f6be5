"""How sure a difference is: percentile bootstrap over matched calls.

A pair is the same call (arrival, lengths, prompt) under two controllers, so what the calls differ
in among themselves does not count, only what the controllers did to them. Pure: the seed is fixed,
the same pairs give the same interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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


def mean_interval(values: Sequence[float]) -> Interval | None:
    if not values:
        return None
    return _interval(np.asarray(values, dtype=float)[:, None], lambda means: means[:, 0])


def percent_difference(pairs: Sequence[tuple[float, float]]) -> Interval | None:
    """100 x (mean of the second - mean of the first) / mean of the first."""
    if not pairs or not sum(first for first, _ in pairs):
        return None
    return _interval(
        np.asarray(pairs, dtype=float),
        lambda means: 100 * (means[:, 1] - means[:, 0]) / means[:, 0],
    )


def difference(pairs: Sequence[tuple[float, float]]) -> Interval | None:
    """Mean of the second - mean of the first."""
    if not pairs:
        return None
    return _interval(np.asarray(pairs, dtype=float), lambda means: means[:, 1] - means[:, 0])


def removed_share(pairs: Sequence[tuple[float, float]], floor: Sequence[float]) -> Interval | None:
    """(off - on) / (off - floor); None if there is no tax to remove.

    The floor's calls are others than the pairs': they are resampled on their own."""
    if not pairs or not floor:
        return None
    drawn = _resampled(np.asarray(pairs, dtype=float), SEED)
    lowest = _resampled(np.asarray(floor, dtype=float)[:, None], SEED + 1)[:, 0]
    taxes = drawn[:, 0] - lowest
    if np.quantile(taxes, (1 - LEVEL) / 2) <= 0:
        return None
    shares = (drawn[:, 0] - drawn[:, 1]) / taxes
    off, on = np.asarray(pairs, dtype=float).mean(axis=0)
    value = (off - on) / (off - float(np.mean(floor)))
    return Interval(float(value), *_ends(shares))


def _interval(rows: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]) -> Interval:
    value = statistic(rows.mean(axis=0)[None, :])[0]
    return Interval(float(value), *_ends(statistic(_resampled(rows, SEED))))


def _resampled(rows: np.ndarray, seed: int) -> np.ndarray:
    """Column means of RESAMPLES draws of whole rows."""
    chosen = np.random.default_rng(seed).integers(0, len(rows), size=(RESAMPLES, len(rows)))
    means: np.ndarray = rows[chosen].mean(axis=1)
    return means


def _ends(values: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(values, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(low), float(high)
