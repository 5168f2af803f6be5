"""A closed-loop HTTP load client that costs a few microseconds per request.

Each connection sends its next request when the last answer is complete. Requests are bytes prepared
beforehand; of an answer it reads only where it ends and how many SSE events it had. An answer other
than 200 ends the run: a fast error is not a fast answer. Host: bench.coordinator_overhead."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_LAST_CHUNK = b"\r\n0\r\n\r\n"


class LoadFailed(Exception):
    """A system under test answered something else than 200, or closed a connection."""


@dataclass(frozen=True, slots=True)
class Leg:
    """Where a request goes, and the requests that a connection takes in turn."""

    url: str
    requests: Sequence[bytes]


@dataclass(slots=True)
class LoadResult:
    """Latencies of calls that began after the warm-up."""

    duration_s: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    first_byte_s: list[float] = field(default_factory=list)
    events: int = 0
    all_calls: int = 0
    """Calls of the warm-up included."""

    @property
    def calls_per_s(self) -> float:
        return len(self.latencies_s) / self.duration_s

    @property
    def events_per_s(self) -> float:
        return self.events / self.duration_s


def http_request(path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> bytes:
    """One POST as bytes."""
    payload = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    lines.append(f"content-length: {len(payload)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload


class Connection(asyncio.Protocol):
    """One keep-alive connection with at most one request in flight."""

    def __init__(self, requests: Iterator[bytes]) -> None:
        self._requests = requests
        self._transport: asyncio.Transport
        self._on_answer: Callable[[], None] | None = None
        self._head = b""
        self._left = 0
        self._tail = b""
        self._is_chunked = False
        self._in_body = False
        self.events = 0
        self.first_byte_at_s = 0.0
        self.failure: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's TCP transport is one, without being a subclass.
        self._transport = cast("asyncio.Transport", transport)

    def send(self, on_answer: Callable[[], None]) -> None:
        """Sends the next request; `on_answer()` is called when its answer is complete."""
        self._on_answer = on_answer
        self._in_body, self._head, self.events = False, b"", 0
        self._transport.write(next(self._requests))

    def close(self) -> None:
        self._on_answer = None
        self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if self._on_answer is not None:
            self._fail(f"the connection was closed without an answer ({error})")

    def data_received(self, data: bytes) -> None:
        if not self._in_body:
            data = self._read_head(data)
            if not self._in_body:
                return
        if self._is_chunked:
            self.events += (self._tail[-1:] + data).count(b"\n\n")
            self._tail = (self._tail + data)[-len(_LAST_CHUNK) :]
            if self._tail == _LAST_CHUNK:
                self._done()
            return
        self._left -= len(data)
        if self._left <= 0:
            self._done()

    def _read_head(self, data: bytes) -> bytes:
        """Gives the bytes after the head once it is whole, and then sets `_in_body`."""
        if not self._head:
            self.first_byte_at_s = time.perf_counter()
        self._head += data
        head, blank_line, body = self._head.partition(b"\r\n\r\n")
        if not blank_line:
            return b""
        if not head.startswith(b"HTTP/1.1 200"):
            self._fail(self._head[:400].decode(errors="replace"))
            return b""
        length = _LENGTH.search(head)
        self._is_chunked, self._tail = length is None, b"\r\n"
        self._left = int(length[1]) if length else 0
        self._in_body = True
        return body

    def _done(self) -> None:
        on_answer, self._on_answer = self._on_answer, None
        if on_answer is not None:
            on_answer()

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self._done()


class _Caller:
    """One simulated client: a call is all its legs, one after the other."""

    def __init__(self, connections: list[Connection], run: _Run) -> None:
        self._connections = connections
        self._run = run
        self._leg = 0
        self._started_at_s = 0.0

    def start(self) -> None:
        self._leg = 0
        self._started_at_s = time.perf_counter()
        self._connections[0].send(self._answered)

    def _answered(self) -> None:
        connection = self._connections[self._leg]
        if connection.failure is not None:
            self._run.failed(connection.failure)
            return
        self._leg += 1
        if self._leg < len(self._connections):
            self._connections[self._leg].send(self._answered)
            return
        if self._run.record(self._started_at_s, connection):
            self.start()


class _Run:
    """What the callers of one measurement share."""

    def __init__(self, warm_up_s: float, duration_s: float) -> None:
        self.result = LoadResult(duration_s=duration_s)
        self._duration_s = duration_s
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._begins_at_s = time.perf_counter() + warm_up_s
        self._ends_at_s = self._begins_at_s + duration_s

    def record(self, started_at_s: float, connection: Connection) -> bool:
        """False when the time is up."""
        now_s = time.perf_counter()
        self.result.all_calls += 1
        # On a machine that is busy with something else a cell may end before its first call does.
        if now_s >= self._ends_at_s and self.result.latencies_s:
            if not self.finished.done():
                self.finished.set_result(None)
            return False
        self.result.duration_s = max(self._duration_s, now_s - self._begins_at_s)
        if started_at_s >= self._begins_at_s:
            self.result.latencies_s.append(now_s - started_at_s)
            self.result.first_byte_s.append(connection.first_byte_at_s - started_at_s)
            self.result.events += connection.events
        return True

    def failed(self, reason: str) -> None:
        if not self.finished.done():
            self.finished.set_exception(LoadFailed(reason))


async def run_load(
    legs: Sequence[Leg], *, connections: int, duration_s: float, warm_up_s: float
) -> LoadResult:
    """Keeps `connections` calls in flight; raises LoadFailed, or TimeoutError if nothing comes."""
    opened = [await _open(legs, at, connections) for at in range(connections)]
    run = _Run(warm_up_s, duration_s)
    try:
        for caller in [_Caller(own, run) for own in opened]:
            caller.start()
        async with asyncio.timeout(warm_up_s + duration_s + 10):
            await run.finished
    finally:
        for connection in itertools.chain(*opened):
            connection.close()
        # The transports close themselves in the next turn of the loop.
        await asyncio.sleep(0)
    return run.result


async def _open(legs: Sequence[Leg], at: int, connections: int) -> list[Connection]:
    """Caller `at` starts at its own share of each leg's requests, so that callers differ."""
    opened = []
    for leg in legs:
        share = max(1, len(leg.requests) // connections)
        first = at * share % len(leg.requests)
        own = itertools.cycle(leg.requests[first : first + share])
        address = urlsplit(leg.url)
        assert address.port is not None, leg.url
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda own=own: Connection(own),  # type: ignore[misc]  # a default is not inferred
            "127.0.0.1",
            address.port,
        )
        opened.append(connection)
    return opened
