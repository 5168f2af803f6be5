"""The last whole histories of sessions between two calls, so that a hint can begin a shadow job.

Agents know what they do next while a tool runs, when no call brings its history along. Bounded by
bytes; the oldest go first, and a hint for such a session waits for its next call.
Host: coordinator.shadow_flow."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from coordinator.history import History

LIMIT_BYTES: Final = 64 * 1024 * 1024

SessionKey = tuple[str, str]


class KeptHistories:
    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._kept: OrderedDict[SessionKey, History] = OrderedDict()
        self._bytes = 0

    def keep(self, key: SessionKey, history: History) -> None:
        self.forget(key)
        self._kept[key] = history
        self._bytes += history.size_bytes
        while self._bytes > self._limit_bytes:
            self.forget(next(iter(self._kept)))

    def of(self, key: SessionKey) -> History | None:
        return self._kept.get(key)

    def forget(self, key: SessionKey) -> None:
        history = self._kept.pop(key, None)
        if history is not None:
            self._bytes -= history.size_bytes

    def clear(self) -> None:
        self._kept.clear()
        self._bytes = 0
