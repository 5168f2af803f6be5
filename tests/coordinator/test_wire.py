"""Connections to engines: reuse, cancellation, limits, and answers that are not answers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from coordinator.connection import MAX_BUFFERED_BYTES, Disconnected
from coordinator.wire import CannotConnect, WentStale, Wire, split_url
from tests.coordinator.call_rig import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/x\r\ncontent-length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class Peer:
    """A server whose every request is answered by `script`."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.connections = 0
        self.requests: list[bytes] = []
        self.closed = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(length))
                await self._script(reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed += 1
        finally:
            writer.close()


@asynccontextmanager
async def a_peer(script: Script) -> AsyncIterator[tuple[Peer, Wire]]:
    peer, wire = Peer(script), Wire(connect_timeout_s=1)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    async with server:
        peer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield peer, wire
        await wire.close()


def says(*parts: bytes) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()

    return script


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    raise ConnectionError


async def post(wire: Wire, peer: Peer, body: bytes = b"{}", limit_s: float = 5) -> bytes:
    connection = await wire.send("POST", peer.url, "/x", body, limit_s)
    try:
        return await connection.read_all(limit_s)
    finally:
        connection.release()


async def test_a_connection_is_used_again_after_a_whole_answer() -> None:
    async with a_peer(says(OK)) as (peer, wire):
        for _ in range(3):
            assert await post(wire, peer) == b"hi"
        assert peer.connections == 1
        assert peer.requests[0].startswith(b"POST /x HTTP/1.1\r\nhost: 127.0.0.1:")


async def test_calls_at_once_have_a_connection_each() -> None:
    async with a_peer(says(OK)) as (peer, wire):
        await asyncio.gather(*(post(wire, peer) for _ in range(5)))
        assert peer.connections == 5


async def test_a_chunked_answer_is_read_in_any_pieces() -> None:
    stream = CHUNKED + b"5\r\nhello\r\n1\r\n \r\n5\r\nworld\r\n0\r\n\r\n"
    async with a_peer(says(*(stream[at : at + 1] for at in range(len(stream))))) as (peer, wire):
        assert await post(wire, peer) == b"hello world"
        assert await post(wire, peer) == b"hello world"
        assert peer.connections == 1


async def test_releasing_an_unfinished_answer_closes_its_connection() -> None:
    async with a_peer(says(CHUNKED + b"5\r\nhello\r\n")) as (peer, wire):
        connection = await wire.send("POST", peer.url, "/x", b"", 5)
        assert await connection.read(5) == b"hello"
        connection.release()
        await until(lambda: peer.closed, "the peer sees it")


async def test_cancelling_a_request_closes_its_connection() -> None:
    async with a_peer(says()) as (peer, wire):
        task = asyncio.create_task(post(wire, peer))
        await until(lambda: peer.requests, "the request is there")
        task.cancel()
        await until(lambda: peer.closed, "the peer sees it")


async def test_an_answer_whose_last_event_was_read_may_end_later() -> None:
    go = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + b"4\r\nlast\r\n")
        await go.wait()
        writer.write(b"0\r\n\r\n")

    async with a_peer(script) as (peer, wire):
        for _ in range(2):
            go.clear()
            connection = await wire.send("POST", peer.url, "/x", b"", 5)
            assert await connection.read(5) == b"last"
            connection.release_at_end()
            go.set()
            await until(lambda one=connection: one.complete, "the end is here")
        assert peer.connections == 1


async def test_nobody_there_is_told_at_once() -> None:
    async with a_peer(says(OK)) as (peer, wire):
        pass
    with pytest.raises(CannotConnect, match="cannot be reached"):
        await post(wire, peer)


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhal", CHUNKED + b"5\r\nhe"],
    ids=["nothing", "half_a_body", "half_a_chunk"],
)
async def test_a_peer_that_hangs_up_is_disconnected(answer: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        raise ConnectionError

    async with a_peer(script) as (peer, wire):
        with pytest.raises(Disconnected):
            await post(wire, peer)


@pytest.mark.parametrize("answer", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nbad\r\n\r\n"])
async def test_a_peer_that_does_not_speak_http_is_disconnected(answer: bytes) -> None:
    async with a_peer(says(answer)) as (peer, wire):
        with pytest.raises(Disconnected, match="malformed"):
            await post(wire, peer)


async def test_a_used_connection_that_ends_under_a_request_went_stale() -> None:
    answers = [says(OK), hang_up]

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answers.pop(0)(reader, writer)

    async with a_peer(script) as (peer, wire):
        await post(wire, peer)
        with pytest.raises(WentStale):
            await post(wire, peer)


async def test_a_connection_that_ended_while_idle_is_not_used() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await writer.drain()
        writer.close()

    async with a_peer(script) as (peer, wire):
        for expected in (1, 2):
            await post(wire, peer)
            pool = wire._pools[split_url(peer.url)[0]]
            await until(lambda pool=pool: not any(one.usable for one in pool), "it is gone")
            assert peer.connections == expected


async def test_silence_before_and_inside_an_answer_times_out() -> None:
    async with a_peer(says()) as (peer, wire):
        with pytest.raises(TimeoutError):
            await post(wire, peer, limit_s=0.05)
    async with a_peer(says(CHUNKED + b"1\r\nx\r\n")) as (peer, wire):
        with pytest.raises(TimeoutError):
            await post(wire, peer, limit_s=0.05)
        await until(lambda: peer.closed, "a timed-out request is cancelled")


async def test_a_reader_that_is_slow_holds_the_peer_back() -> None:
    body = b"x" * (64 * MAX_BUFFERED_BYTES)
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with a_peer(says(answer, body)) as (peer, wire):
        connection = await wire.send("POST", peer.url, "/x", b"", 5)
        await until(lambda: connection._paused, "reading is paused")
        assert connection._buffered < 4 * MAX_BUFFERED_BYTES
        assert len(await connection.read_all(5)) == len(body)
        connection.release()


async def test_a_big_request_arrives_whole() -> None:
    async with a_peer(says(OK)) as (peer, wire):
        body = b"y" * 300_000
        await post(wire, peer, body)
        assert peer.requests[0].endswith(body)


@pytest.mark.parametrize("url", ["ftp://x", "http://", "127.0.0.1:80"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="http"):
        split_url(url)


def test_a_url_says_where_to_connect() -> None:
    assert split_url("http://h:81/base/") == (("h", 81, False), "/base")
    assert split_url("https://h/x?y=1") == (("h", 443, True), "/x?y=1")


async def test_connections_of_a_burst_are_dropped_by_the_calls_that_follow() -> None:
    async with a_peer(says(OK)) as (peer, wire):
        burst = [await wire.send("POST", peer.url, "/", b"{}", 5) for _ in range(40)]
        for connection in burst:
            await connection.read_all(5)
            connection.release()
        pool = wire._pools[split_url(peer.url)[0]]
        assert len(pool) == 40
        for connection in pool:
            connection.idle_since -= 10
        for _ in range(5):
            connection = await wire.send("POST", peer.url, "/", b"{}", 5)
            await connection.read_all(5)
            connection.release()
        assert len(pool) == 1
        await until(lambda: peer.closed == 40, "they are closed")
