"""What one engine counts of its own work, in plain numbers that a scrape reads from another thread.

A step may cost the plug-in 100 us in all, so counting takes a few of them: no locks, no labels, no
objects per step.

Hosts: engine.observed (writes), engine.exporter (reads)."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from engine.trace import TraceTally

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP_BOUNDS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2, 5)
ERROR_BOUNDS = (0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.2, 1.5, 2, 4)
WAIT_BOUNDS_S = (0.001, 0.005, *STEP_BOUNDS_S[1:], 10)


class Behind(StrEnum):
    """What ran when a request arrived (metric label)."""

    SHADOW = "shadow"
    """An iteration that carried shadow tokens: this wait is ours to answer for."""
    FOREGROUND = "foreground"
    NOTHING = "nothing"


class Buckets:
    """A histogram; prometheus_client's own takes a lock for each value."""

    __slots__ = ("bounds", "counts", "largest", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.largest = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
        if value > self.largest:
            self.largest = value

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """As Prometheus wants them: upper bound, and how many were not above it."""
        below = 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            below += count
            yield str(bound), below


def _steps() -> Buckets:
    return Buckets(STEP_BOUNDS_S)


@dataclass(slots=True)
class EngineCounts:
    """Since the engine's start."""

    shadow_tokens: int = 0
    plain_step_s: Buckets = field(default_factory=_steps)
    shadow_step_s: Buckets = field(default_factory=_steps)
    """Of iterations that carried shadow tokens."""
    budget_s: Buckets = field(default_factory=_steps)
    predicted_s: Buckets = field(default_factory=_steps)
    actual_over_predicted: Buckets = field(default_factory=lambda: Buckets(ERROR_BOUNDS))
    arrival_wait_s: dict[Behind, Buckets] = field(
        default_factory=lambda: {behind: Buckets(WAIT_BOUNDS_S) for behind in Behind}
    )
    changes_applied: int = 0
    changes_refused: int = 0
    trace: TraceTally = field(default_factory=TraceTally)
