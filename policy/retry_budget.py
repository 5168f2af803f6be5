"""How many calls may be placed again: a share of the calls that come, and a few more.

When engines fail because they are overloaded, a second attempt for every call is the last thing
they need. Pure. Host: coordinator.legs."""

from __future__ import annotations

RETRIES_PER_CALL = 0.2
_ROUNDING = 1e-9
RESERVE = 20.0
"""Retries that may come at once: an instance that dies takes all its calls with it."""


class RetryBudget:
    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = RESERVE

    def call_came(self) -> None:
        self._left = min(RESERVE, self._left + RETRIES_PER_CALL)

    def take(self) -> bool:
        """Whether there was one."""
        if self._left < 1.0 - _ROUNDING:
            return False
        self._left -= 1.0
        return True
