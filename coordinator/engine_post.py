"""One JSON POST of the shadow flow to an engine: own connections, own limits, typed failures.

The calls of clients never share a connection with shadow work: closing one of these (a cancelled
task does that) tells the engine to drop the request and nothing else.

* ShadowFailed     this piece of shadow work is lost; the call that it was for only gets slower"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import TYPE_CHECKING

from coordinator.wire import Wire, WireError

if TYPE_CHECKING:
    from coordinator.instances import Instance

_SHOWN_BYTES = 300
"""How much of an engine's error body a log line carries."""


class ShadowFailure(StrEnum):
    """Why a piece of shadow work was lost (metric label)."""

    REJECTED = "rejected"  # 4xx: this input will fail again
    ENGINE_ERROR = "engine_error"  # 5xx
    UNAVAILABLE = "unavailable"  # no connection, or it broke
    TIMED_OUT = "timed_out"
    UNREADABLE = "unreadable"  # an answer that we do not understand
    RELEASED = "released"  # the session's own call, or a newer segment, took its place
    TRUNCATED = "truncated"  # the shadow class is full
    ENDED_EARLY = "ended_early"  # the scheduler gave it up
    MULTIMODAL = "multimodal"  # token ids alone do not name such a prefix


class ShadowFailed(Exception):
    """One render, segment or push that brought nothing."""

    def __init__(self, failure: ShadowFailure, text: str) -> None:
        super().__init__(text)
        self.failure = failure


class EnginePost:
    """Posts with one deadline each."""

    def __init__(self, *, connect_timeout_s: float, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._wire = Wire(connect_timeout_s=connect_timeout_s)

    async def close(self) -> None:
        await self._wire.close()

    async def __call__(
        self, instance: Instance, path: str, body: bytes, traceparent: str = ""
    ) -> bytes:
        """The body of a 200 answer; raises ShadowFailed."""
        where = f"{instance.name} {path}"
        try:
            async with asyncio.timeout(self._timeout_s):
                status, answer = await self._exchange(instance.url, path, body, traceparent)
        except TimeoutError:
            text = f"{where}: no answer after {self._timeout_s:g} s"
            raise ShadowFailed(ShadowFailure.TIMED_OUT, text) from None
        except WireError as error:
            raise ShadowFailed(ShadowFailure.UNAVAILABLE, f"{where}: {error}") from None
        if status == 200:
            return answer
        failure = ShadowFailure.REJECTED if status < 500 else ShadowFailure.ENGINE_ERROR
        shown = answer[:_SHOWN_BYTES].decode("utf-8", "replace")
        raise ShadowFailed(failure, f"{where}: HTTP {status}: {shown}")

    async def _exchange(
        self, url: str, path: str, body: bytes, traceparent: str
    ) -> tuple[int, bytes]:
        connection = await self._wire.send(
            "POST", url, path, body, self._timeout_s, traceparent=traceparent
        )
        try:
            return connection.status, await connection.read_all(self._timeout_s)
        finally:
            connection.release()
