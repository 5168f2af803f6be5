"""One HTTP/1.1 connection to an engine, on httptools: one exchange at a time.

Closing it is how a request is cancelled: the engine aborts it at its next step.
Host: coordinator.wire."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httptools

if TYPE_CHECKING:
    from collections import deque

MAX_BUFFERED_BYTES = 256 * 1024
"""A connection whose reader is slower than the engine stops reading beyond this."""

_END_S = 1.0
"""How long the end of an answer may stay behind its last event; then its connection is given up."""


class WireError(Exception):
    """The exchange failed below HTTP."""


class Disconnected(WireError):
    """The peer went away, or spoke something that is not HTTP."""


class Connection(asyncio.Protocol):
    """One connection, one exchange at a time. The reader owns it until `release`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: deque[Connection]) -> None:
        self._loop = loop
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._deadline_s = 0.0
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_s = 0.0
        self._broken: str = ""
        self._reusable = False
        self._nobody_reads: asyncio.TimerHandle | None = None
        self.status = 0
        self.content_type = b""
        self.answering = False
        """Whether any byte of the current answer has arrived."""
        self.complete = True
        self.idle_since = 0.0

    # --- the reader's side

    async def exchange(self, request: bytes, body: bytes, timeout_s: float) -> None:
        """Sends a request; returns when the status line and headers of the answer are here."""
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self.status, self.content_type = 0, b""
        self.answering = self.complete = self._reusable = False
        self._transport.write(request + body if len(body) < 65536 else request)
        if len(body) >= 65536:
            self._transport.write(body)
        await self.begun(timeout_s)

    async def begun(self, timeout_s: float) -> None:
        """Returns when the status line and headers of the answer are here."""
        deadline_s = self._loop.time() + timeout_s
        while not self.status:
            await self._wait(deadline_s - self._loop.time())

    async def read(self, timeout_s: float) -> bytes:
        """The body bytes that have arrived, at least one; empty at the end of the answer.
        Raises TimeoutError after a silence of `timeout_s`."""
        while not self._chunks:
            if self.complete:
                return b""
            await self._wait(timeout_s)
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._chunks = []
        self._buffered = 0
        if self._paused and self._transport is not None and not self._broken:
            self._paused = False
            self._transport.resume_reading()
        return data

    async def read_all(self, timeout_s: float) -> bytes:
        """The rest of the body, within `timeout_s` in all."""
        deadline_s = self._loop.time() + timeout_s
        parts: list[bytes] = []
        while part := await self.read(deadline_s - self._loop.time()):
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def release(self) -> None:
        """Gives the connection back if its answer was read to the end, else cancels the request."""
        if self.complete and self._reusable and not self._broken and not self._chunks:
            self.idle_since = self._loop.time()
            while self._pool and not self._pool[0].usable:
                self._pool.popleft()
            self._pool.append(self)
        else:
            self.close()

    def release_at_end(self) -> None:
        """For a reader that has all it wants of an answer that is about to end."""
        if self.complete or self._broken:
            self._chunks = []
            self.release()
        else:
            self._nobody_reads = self._loop.call_later(_END_S, self.close)

    def close(self) -> None:
        self._broken = self._broken or "was closed here"
        if self._transport is not None:
            self._transport.abort()

    @property
    def usable(self) -> bool:
        return not self._broken

    async def _wait(self, timeout_s: float) -> None:
        if self._broken:
            raise Disconnected(self._broken)
        waiter = self._waiter = self._loop.create_future()
        self._deadline_s = self._loop.time() + timeout_s
        if self._alarm is None or self._alarm_s > self._deadline_s:
            self._set_alarm()
        try:
            await waiter
        finally:
            self._waiter = None

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_s = self._deadline_s
        self._alarm = self._loop.call_at(self._alarm_s, self._ring)

    def _ring(self) -> None:
        """An alarm stays set when what it was for has come: most are for nothing, and setting and
        cancelling one per wait costs more than to look again when it rings."""
        self._alarm = None
        if self._waiter is None or self._waiter.done():
            return
        if self._deadline_s > self._loop.time():
            self._set_alarm()
        else:
            self._waiter.set_exception(TimeoutError())

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]  # uvloop's has no common base

    def data_received(self, data: bytes) -> None:
        if self.complete or self._parser is None:
            self._break("sent bytes that nobody asked for")
            return
        self.answering = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._break(f"sent a malformed answer: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._nobody_reads, self._alarm):
            if timer is not None:
                timer.cancel()
        self._broken = self._broken or f"closed the connection ({exc or 'end of file'})"
        self._wake()

    def _break(self, reason: str) -> None:
        self._broken = reason
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    # --- the parser's side

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == 12 and name.lower() == b"content-type":
            self.content_type = value

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        self.status = self._parser.get_status_code()
        self._wake()

    def on_body(self, body: bytes) -> None:
        if self._nobody_reads is not None:
            return
        self._chunks.append(body)
        self._buffered += len(body)
        if self._buffered > MAX_BUFFERED_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        assert self._parser is not None
        self.complete = True
        self._reusable = self._parser.should_keep_alive()
        if self._nobody_reads is not None:
            self._nobody_reads.cancel()
            self._nobody_reads = None
            self.release()
        self._wake()
