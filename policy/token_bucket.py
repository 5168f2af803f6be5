"""How much of something may be used per time: a bucket that fills evenly and holds so much.

Pure. Hosts: coordinator.admission (requests), coordinator.shadow_quota (shadow tokens)."""

from __future__ import annotations

import math


class TokenBucket:
    """Full at first."""

    __slots__ = ("_capacity", "_filled_s", "_level", "_rate_per_s")

    def __init__(self, *, rate_per_s: float, capacity: float, now_s: float) -> None:
        if not (rate_per_s > 0 and capacity > 0):
            raise ValueError(f"rate and capacity must be > 0, got {rate_per_s} and {capacity}")
        self._rate_per_s = rate_per_s
        self._capacity = capacity
        self._level = capacity
        self._filled_s = now_s

    def level(self, now_s: float) -> float:
        """What is left; below 0 after more was spent than there was."""
        gained = max(0.0, now_s - self._filled_s) * self._rate_per_s
        self._level = min(self._capacity, self._level + gained)
        self._filled_s = max(self._filled_s, now_s)
        return self._level

    def take(self, now_s: float) -> float:
        """Takes one, and gives 0; or takes nothing, and gives the seconds until there is one."""
        missing = 1.0 - self.level(now_s)
        if missing > 0:
            # Rounding must not tell somebody to come a moment too early.
            return math.nextafter(missing / self._rate_per_s, math.inf)
        self._level -= 1.0
        return 0.0

    def spend(self, now_s: float, amount: float) -> None:
        """Of something whose amount is only known afterwards."""
        self._level = self.level(now_s) - amount
