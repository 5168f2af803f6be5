"""When to leave an instance, or a pair of a P and a D, alone after failures; when to try it again.

Closed: calls go there. After so many failures in a row it opens for a while; then one call may try,
and its end decides: closed again, or open for twice as long.

Pure. Host: coordinator.node_state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerParams:
    failures: int
    """In a row, until it opens."""
    open_s: float
    """The first time."""
    most_open_s: float

    def __post_init__(self) -> None:
        if self.failures < 1:
            raise ValueError(f"breaker.failures must be >= 1, got {self.failures}")
        if not 0 < self.open_s <= self.most_open_s:
            raise ValueError(
                f"breaker.open_s must be > 0 and <= {self.most_open_s}, got {self.open_s}"
            )


class Breaker:
    """Of one instance or pair. Reading `lets_through` commits to nothing; `tries` does."""

    __slots__ = ("_failures", "_open_s", "_open_until_s", "_params", "_trial_until_s")

    def __init__(self, params: BreakerParams) -> None:
        self._params = params
        self._failures = 0
        self._open_s = 0.0
        self._open_until_s = 0.0
        self._trial_until_s = 0.0

    @property
    def is_closed(self) -> bool:
        return self._open_s == 0.0

    def lets_through(self, now_s: float) -> bool:
        """Whether a call may go there now."""
        return self.is_closed or (now_s >= self._open_until_s and now_s >= self._trial_until_s)

    def tries(self, now_s: float) -> None:
        """A call goes there. Of an open breaker it is the trial: no other follows until it has
        ended, or is forgotten (a call that its client left never ends here)."""
        if not self.is_closed:
            self._trial_until_s = now_s + self._open_s

    def succeeded(self) -> None:
        self._failures = 0
        self._open_s = self._open_until_s = self._trial_until_s = 0.0

    def failed(self, now_s: float) -> None:
        self._failures += 1
        self._trial_until_s = 0.0
        if self._failures < self._params.failures:
            return
        longer_s = min(2 * self._open_s, self._params.most_open_s)
        self._open_s = longer_s or self._params.open_s
        self._open_until_s = now_s + self._open_s
