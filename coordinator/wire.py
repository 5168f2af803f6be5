"""HTTP/1.1 to the engines: keep-alive connections on httptools, the parser that uvicorn uses.

Why not aiohttp: one small POST costs 130 to 150 us of CPU there and 20 to 25 us here (measured on
one core, uvloop), and a disaggregated call makes two of them. What is left out is what engines do
not need: redirects, proxies, cookies, compression."""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict, deque
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

from coordinator.connection import Connection, Disconnected, WireError

__all__ = [
    "CannotConnect",
    "Connection",
    "Disconnected",
    "Sending",
    "WentStale",
    "Wire",
    "WireError",
]


_DROPPED_AT_ONCE = 8


class CannotConnect(WireError):
    """Nothing was sent."""


class WentStale(Disconnected):
    """The peer closed an idle connection while we were writing to it. Most likely it saw nothing,
    but nobody can know: only the caller can tell whether asking again does harm."""


class Sending:
    """How to send one request; and how far it came, if its sender was cancelled."""

    __slots__ = ("began", "connection", "fresh", "request_id", "traceparent")

    def __init__(self, fresh: bool = False) -> None:
        self.fresh = fresh
        """Not on a connection that was used before."""
        self.request_id = ""
        """What the peer is to call it, if its body has no field for that."""
        self.traceparent = ""
        """W3C; empty: not traced."""
        self.began = False
        """The peer may have seen it."""
        self.connection: Connection | None = None
        """Where its answer comes in, of which nobody has read a byte. Whoever catches the
        cancellation has to release it."""


def _more_heads(sending: Sending | None, traceparent: str) -> bytes:
    request_id = ""
    if sending is not None:
        request_id, traceparent = sending.request_id, sending.traceparent
    heads = b"x-request-id: %b\r\n" % request_id.encode() if request_id else b""
    return heads + b"traceparent: %b\r\n" % traceparent.encode() if traceparent else heads


class Origin(NamedTuple):
    host: str
    port: int
    tls: bool


@lru_cache(maxsize=1024)
def split_url(url: str) -> tuple[Origin, str]:
    """Where to connect, and the path; raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"an engine URL must be http(s)://host[:port], got {url!r}")
    tls = parts.scheme == "https"
    path = parts.path.rstrip("/") + (f"?{parts.query}" if parts.query else "")
    return Origin(parts.hostname, parts.port or (443 if tls else 80), tls), path


class Wire:
    """Connections to all engines of one event loop."""

    def __init__(self, *, connect_timeout_s: float, idle_s: float = 3.0) -> None:
        self._connect_timeout_s = connect_timeout_s
        # Engines close a connection that was idle for 5 s (uvicorn's default): we leave first.
        self._idle_s = idle_s
        self._pools: defaultdict[Origin, deque[Connection]] = defaultdict(deque)
        self._heads: dict[tuple[str, str, str], bytes] = {}

    async def send(
        self,
        method: str,
        base_url: str,
        path: str,
        body: bytes,
        timeout_s: float,
        *,
        fresh: bool = False,
        traceparent: str = "",
        sending: Sending | None = None,
    ) -> Connection:
        """Sends one request and waits for the head of its answer. Raises WireError, TimeoutError.
        `fresh`: not on a connection that was used before; a `sending` says that itself, and its
        `traceparent`.

        The caller must `release` what it gets, whatever happens."""
        origin, base_path = split_url(base_url)
        head = self._head(method, base_url, base_path + path)
        request = b"%b%d\r\n%b\r\n" % (head, len(body), _more_heads(sending, traceparent))
        pool = self._pools[origin]
        is_fresh = fresh if sending is None else sending.fresh
        connection = None if is_fresh else self._idle(pool)
        is_reused = connection is not None
        if connection is None:
            connection = await self._connect(origin, pool)
        if sending is not None:
            sending.began = True
        try:
            await connection.exchange(request, body, timeout_s)
        except asyncio.CancelledError:
            if sending is None:
                connection.close()
            else:
                sending.connection = connection
            raise
        except Disconnected as error:
            connection.close()
            if is_reused and not connection.answering:
                raise WentStale(str(error)) from None
            raise
        except BaseException:
            connection.close()
            raise
        return connection

    async def close(self) -> None:
        for pool in self._pools.values():
            while pool:
                pool.pop().close()

    def _head(self, method: str, base_url: str, target: str) -> bytes:
        key = (method, base_url, target)
        head = self._heads.get(key)
        if head is None:
            if any(char in target for char in "\r\n "):
                raise ValueError(f"a request path must not hold blanks, got {target!r}")
            host = urlsplit(base_url).netloc.rpartition("@")[2]
            head = (
                f"{method} {target or '/'} HTTP/1.1\r\nhost: {host}\r\naccept: */*\r\n"
                "content-type: application/json\r\ncontent-length: "
            ).encode()
            if len(self._heads) < 4096:
                self._heads[key] = head
        return head

    def _idle(self, pool: deque[Connection]) -> Connection | None:
        oldest_s = asyncio.get_running_loop().time() - self._idle_s
        # Those of a burst age at the other end. A few go per request: none pays for all of them.
        for _ in range(_DROPPED_AT_ONCE):
            if pool and pool[0].idle_since < oldest_s:
                pool.popleft().close()
        while pool:
            connection = pool.pop()  # the most recently used; the others age and are dropped
            if connection.usable and connection.idle_since >= oldest_s:
                return connection
            connection.close()
        return None

    async def _connect(self, origin: Origin, pool: deque[Connection]) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop, pool),
                    origin.host,
                    origin.port,
                    ssl=ssl.create_default_context() if origin.tls else None,
                )
        except TimeoutError:
            raise CannotConnect(f"no connection within {self._connect_timeout_s:g} s") from None
        except OSError as error:
            raise CannotConnect(f"cannot be reached: {error}") from error
        return connection
