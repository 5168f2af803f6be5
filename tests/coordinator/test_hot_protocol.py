"""Hot requests that skip ASGI are answered as ASGI answers them, and share connections with it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from coordinator.hot_protocol import HotExchange, HotProtocol
from coordinator.openai_api import AsgiReply
from coordinator.pd_flow import PdFlow
from tests.coordinator.call_rig import (
    CHAT,
    COLOCATED,
    DEADLINE_S,
    a_chat,
    a_coordinator,
    until,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coordinator.delivery import Reply
    from coordinator.pd_flow import Request
    from tests.coordinator.call_rig import Rig

JSON_TYPE = "content-type: application/json"
BY_NOBODY = re.compile(rb"chatcmpl-\w+|auto-\w+|\"created\": ?\d+")
"""What differs between two equal answers."""


def a_request(body: dict[str, Any], *headers: str, path: str = CHAT, version: str = "1.1") -> bytes:
    raw = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/{version}", "host: x", JSON_TYPE, *headers]
    return "\r\n".join([*lines, f"content-length: {len(raw)}", "", ""]).encode() + raw


def a_get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()


class Socket:
    """A client that decides about every byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def answer(self) -> tuple[bytes, bytes]:
        """Head and body of the next answer."""
        head = b" 100 "
        while b" 100 " in head.partition(b"\r\n")[0]:
            head = await self.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if length is None:
            return head, await self.reader.readuntil(b"\r\n0\r\n\r\n")
        return head, await self.reader.readexactly(int(length[1]))


@asynccontextmanager
async def connected(rig: Rig) -> AsyncIterator[Socket]:
    host, port = rig.url.removeprefix("http://").split(":")
    socket = Socket(*await asyncio.open_connection(host, int(port)))
    try:
        yield socket
    finally:
        socket.writer.close()
        await asyncio.wait([asyncio.ensure_future(socket.writer.wait_closed())])


@pytest.fixture
def asgi_replies(monkeypatch: pytest.MonkeyPatch) -> list[AsgiReply]:
    """The hot requests that took the long way."""
    seen: list[AsgiReply] = []
    born = AsgiReply.__init__

    def noted(self: AsgiReply, send: Any) -> None:
        seen.append(self)
        born(self, send)

    monkeypatch.setattr(AsgiReply, "__init__", noted)
    return seen


@pytest.fixture
def protocols(monkeypatch: pytest.MonkeyPatch) -> list[HotProtocol]:
    """The connection of every hot request."""
    seen: list[HotProtocol] = []
    born = HotExchange.__init__

    def noted(self: HotExchange, protocol: HotProtocol, *rest: Any) -> None:
        seen.append(protocol)
        born(self, protocol, *rest)

    monkeypatch.setattr(HotExchange, "__init__", noted)
    return seen


@pytest.mark.parametrize(
    "request_bytes",
    [
        a_request(a_chat()),
        a_request(a_chat(stream=True)),
        a_request(a_chat(stream=True, stream_options={"include_usage": True})),
        a_request(a_chat(), "x-session-id: s"),
        a_request(a_chat(), "connection: close"),
        a_request(a_chat(model="nobody")),
        a_request({}),
        a_request(a_chat(max_tokens=0)),
    ],
    ids=["whole", "stream", "usage", "session", "close", "unknown", "empty", "invalid"],
)
async def test_both_ways_give_the_same_answer(
    request_bytes: bytes, asgi_replies: list[AsgiReply]
) -> None:
    answers = []
    for protocol in (None, HttpToolsProtocol):
        more = {} if protocol is None else {"protocol": protocol}
        async with a_coordinator(COLOCATED, **more) as rig, connected(rig) as socket:
            socket.writer.write(request_bytes)
            head, body = await socket.answer()
            if protocol is None:
                assert not asgi_replies
            lines = sorted(BY_NOBODY.sub(b"", head).lower().split(b"\r\n"))
            # Where chunks begin and end is nobody's business.
            text = re.sub(rb"\r\n[0-9a-f]+\r\n|^[0-9a-f]+\r\n", b"", BY_NOBODY.sub(b"", body))
            answers.append((lines, text, await at_its_end(socket, head)))
    assert len(asgi_replies) == 1
    assert answers[0] == answers[1]


async def at_its_end(socket: Socket, head: bytes) -> bool:
    if b"connection: close" in head:
        return await socket.reader.read() == b""
    return False


@pytest.mark.parametrize("piece_bytes", [1, 7, 100])
async def test_a_request_may_come_in_pieces(
    piece_bytes: int, asgi_replies: list[AsgiReply]
) -> None:
    async with a_coordinator(COLOCATED) as rig, connected(rig) as socket:
        raw = a_request(a_chat())
        for at in range(0, len(raw), piece_bytes):
            socket.writer.write(raw[at : at + piece_bytes])
            await asyncio.sleep(0)
        head, _ = await socket.answer()
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert not asgi_replies


async def test_hot_and_other_paths_share_a_connection() -> None:
    async with a_coordinator(COLOCATED) as rig, connected(rig) as socket:
        for _ in range(2):
            for request, expected in (
                (a_request(a_chat()), b"chat.completion"),
                (a_get("/v1/models"), b"small"),
                (a_request(a_chat(stream=True)), b"[DONE]"),
                (a_get("/health"), b""),
            ):
                socket.writer.write(request)
                head, body = await socket.answer()
                assert head.startswith(b"HTTP/1.1 200"), head
                assert expected in body


async def test_pipelined_requests_are_answered_in_their_order() -> None:
    async with a_coordinator(COLOCATED) as rig, connected(rig) as socket:
        rig.engines["small-1"].faults.hang()
        hot = a_request(a_chat())
        socket.writer.write(hot + a_get("/v1/models") + hot + hot)
        await until(lambda: rig.calls("small-1"), "the first call runs")
        assert len(rig.calls("small-1")) == 1, "the others wait for its answer"
        rig.engines["small-1"].faults.release()
        for expected in (b"chat.completion", b'"object":"list"', b"chat.completion", b"chat.comp"):
            _, body = await socket.answer()
            assert expected in body.replace(b" ", b"")


async def test_a_client_that_left_before_its_call_began_reaches_no_engine() -> None:
    async with a_coordinator(COLOCATED) as rig, connected(rig) as socket:
        left = HotExchange.__init__

        def leave(self: HotExchange, *arguments: Any) -> None:
            left(self, *arguments)
            self.client_left()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(HotExchange, "__init__", leave)
            socket.writer.write(a_request(a_chat()))
            await asyncio.sleep(0.05)
        assert not rig.calls("small-1")
        assert (await rig.chat(a_chat())).status_code == 200


@pytest.mark.parametrize(
    "request_bytes",
    [
        a_request(a_chat(), "expect: 100-continue"),
        a_request(a_chat(), version="1.0"),
        a_request(a_chat(), path=CHAT + "?x=1"),
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n{JSON_TYPE}\r\ntransfer-encoding: chunked\r\n\r\n"
        f"{len(json.dumps(a_chat())):x}\r\n{json.dumps(a_chat())}\r\n0\r\n\r\n".encode(),
    ],
    ids=["expect", "http_1_0", "query", "chunked"],
)
async def test_what_asks_for_more_of_http_is_served_by_asgi(
    request_bytes: bytes, asgi_replies: list[AsgiReply]
) -> None:
    async with a_coordinator(COLOCATED) as rig, connected(rig) as socket:
        socket.writer.write(request_bytes)
        head, _ = await socket.answer()
        assert head.startswith(b"HTTP/1.1 200"), head
        assert len(asgi_replies) == 1


async def test_a_client_that_does_not_read_holds_its_stream_back(
    protocols: list[HotProtocol],
) -> None:
    async with a_coordinator(COLOCATED) as rig, connected(rig) as socket:
        engine = rig.engines["small-1"]
        engine.faults.hang()
        socket.writer.write(a_request(a_chat(stream=True), "x-session-id: s"))
        await until(lambda: engine.running, "the call runs")
        protocols[0].pause_writing()  # as the transport does when its buffer is full
        engine.faults.release()
        await until(lambda: engine.requests[-1].finished, "the engine is done")
        await until(lambda: rig.hooks.output, "the first bytes were read")
        assert not rig.hooks.ok, "the call waits for its client"
        protocols[0].resume_writing()
        _, body = await socket.answer()
        assert b"[DONE]" in body
        await until(lambda: rig.hooks.ok == [True], "the call ended")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_never_reads_is_left_and_its_call_ends(
    stream: bool, protocols: list[HotProtocol], hurried: None
) -> None:
    async with (
        a_coordinator(COLOCATED, engine={"chunk_delay_s": 0.05}) as rig,
        connected(rig) as socket,
    ):
        socket.writer.write(a_request(a_chat(stream=stream, max_tokens=8, ignore_eos=True)))
        await until(lambda: protocols, "the request has arrived")
        protocols[0].pause_writing()  # for ever
        async with asyncio.timeout(DEADLINE_S):
            with contextlib.suppress(ConnectionError):
                assert not (await socket.reader.read()).endswith(b"0\r\n\r\n")
        await until(lambda: rig.hooks.ok, "the call ended")
        await until(lambda: not protocols[0].tasks, "nothing of it is left")
        await until(lambda: not rig.engines["small-1"].running, "the engine's request ended")


async def test_a_bug_of_ours_is_told_and_the_connection_closed() -> None:
    async with a_coordinator(COLOCATED) as rig, connected(rig) as socket:

        def broken(*_: Any) -> None:
            raise ZeroDivisionError

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("coordinator.openai_api.read_body", broken)
            socket.writer.write(a_request(a_chat()))
            head, body = await socket.answer()
        assert head.startswith(b"HTTP/1.1 500")
        assert json.loads(body)["error"]["type"] == "server_error"
        assert await socket.reader.read() == b""


@pytest.mark.parametrize("is_started", [False, True])
async def test_a_call_that_returns_without_its_answer_never_hangs(is_started: bool) -> None:
    async def serve(_: PdFlow, request: Request, reply: Reply) -> None:
        if is_started:
            await reply.start(b"text/event-stream", [])
            await reply.write(b"data: {}\n\n")

    async with a_coordinator(COLOCATED) as rig, connected(rig) as socket:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PdFlow, "serve", serve)
            socket.writer.write(a_request(a_chat()))
            answer = await socket.reader.read()
        assert answer.startswith(b"HTTP/1.1 200" if is_started else b"HTTP/1.1 500")
        assert not answer.endswith(b"0\r\n\r\n"), "what is incomplete must look so"


@pytest.mark.parametrize("name", [b"two\r\nx-evil: 1", b"two\nlines"])
async def test_a_header_that_would_break_out_of_its_line_is_a_bug_that_is_told(name: bytes) -> None:
    async def serve(_: PdFlow, request: Request, reply: Reply) -> None:
        await reply.whole(b"application/json", [(b"x-name", name)], b"{}")

    async with a_coordinator(COLOCATED) as rig, connected(rig) as socket:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PdFlow, "serve", serve)
            socket.writer.write(a_request(a_chat()))
            answer = await socket.reader.read()
        assert answer.startswith(b"HTTP/1.1 500")
        assert b"x-evil" not in answer


HALF_A_CHUNKED_BODY = (
    f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n{JSON_TYPE}\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{{"
)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients have a tenth of a second."""
    born = HotProtocol.__init__

    def in_a_hurry(self: HotProtocol, *rest: Any, **more: Any) -> None:
        born(self, *rest, **more)
        self.timeout_keep_alive = 0.1  # type: ignore[assignment]

    monkeypatch.setattr(HotProtocol, "__init__", in_a_hurry)


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"POST /v1/chat/comp",
        a_request(a_chat())[:60],
        a_request(a_chat())[:-1],
        HALF_A_CHUNKED_BODY.encode(),
        a_request(a_chat(), path="/v1/models")[:-1],
        a_request(a_chat()) + a_request(a_chat())[:-1],
    ],
    ids=["nothing", "line", "head", "body", "chunked", "refused", "pipelined"],
)
async def test_a_client_that_never_ends_its_request_is_left(begun: bytes, hurried: None) -> None:
    async with a_coordinator(COLOCATED) as rig, connected(rig) as socket:
        socket.writer.write(begun)
        async with asyncio.timeout(DEADLINE_S):
            await socket.reader.read()
        await until(lambda: not rig.engines["small-1"].running, "nothing runs")


@pytest.mark.parametrize("behind", [b"", a_request(a_chat())[:-1], a_get("/v1/models")[:-1]])
async def test_a_running_call_is_not_hurried(behind: bytes, hurried: None) -> None:
    async with a_coordinator(COLOCATED) as rig, connected(rig) as socket:
        engine = rig.engines["small-1"]
        engine.faults.hang()
        socket.writer.write(a_request(a_chat()) + behind)
        await until(lambda: engine.running, "the call runs")
        await asyncio.sleep(0.3)
        engine.faults.release()
        head, _ = await socket.answer()
        assert head.startswith(b"HTTP/1.1 200")
        async with asyncio.timeout(DEADLINE_S):
            assert await socket.reader.read() == b""


@pytest.mark.parametrize(
    "head",
    [
        b"POST /" + b"a" * 2_000_000,
        b"POST /v1/chat/completions HTTP/1.1\r\nx-a: " + b"a" * 2_000_000,
        b"POST /v1/chat/completions HTTP/1.1\r\n" + b"x-a: a\r\n" * 250_000,
        a_get("/v1/models") + b"GET / HTTP/1.1\r\nx-a: " + b"a" * 2_000_000,
    ],
    ids=["line", "header", "headers", "second"],
)
async def test_a_head_without_end_is_refused(head: bytes) -> None:
    async with a_coordinator(COLOCATED) as rig, connected(rig) as socket:
        socket.writer.write(head)
        seen = b""
        with contextlib.suppress(ConnectionError):  # it may be reset while we still write
            async with asyncio.timeout(DEADLINE_S):
                while data := await socket.reader.read(65536):
                    seen += data
        assert b"HTTP/1.1 200" not in seen.partition(b"\r\n\r\n")[2]
        assert not rig.all_calls()
        assert (await rig.chat(a_chat())).status_code == 200


async def test_a_long_head_is_not_an_endless_one() -> None:
    async with a_coordinator(COLOCATED) as rig, connected(rig) as socket:
        for _ in range(2):
            socket.writer.write(a_request(a_chat(), "x-a: " + "a" * 60_000))
            head, _body = await socket.answer()
            assert head.startswith(b"HTTP/1.1 200")


async def test_a_server_that_stops_lets_the_answer_end_and_then_closes(
    protocols: list[HotProtocol],
) -> None:
    async with a_coordinator(COLOCATED) as rig, connected(rig) as socket:
        engine = rig.engines["small-1"]
        engine.faults.hang()
        socket.writer.write(a_request(a_chat()))
        await until(lambda: engine.running, "the call runs")
        protocols[0].shutdown()
        engine.faults.release()
        head, _ = await socket.answer()
        assert head.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in head
        assert await socket.reader.read() == b""
        assert not protocols[0].tasks


async def test_a_server_that_stops_now_ends_the_call_and_tells_the_client(
    protocols: list[HotProtocol],
) -> None:
    async with a_coordinator(COLOCATED) as rig, connected(rig) as socket:
        engine = rig.engines["small-1"]
        engine.faults.hang()
        socket.writer.write(a_request(a_chat()))
        await until(lambda: engine.running, "the call runs")
        for task in protocols[0].tasks:
            task.cancel()
        head, _ = await socket.answer()
        assert head.startswith(b"HTTP/1.1 503")
        await until(lambda: engine.cancelled == 1, "the engine's request ends")


async def test_a_connection_closes_when_it_was_idle_for_long_enough_and_not_before(
    protocols: list[HotProtocol],
) -> None:
    async with a_coordinator(COLOCATED) as rig, connected(rig) as socket:
        for _ in range(2):
            socket.writer.write(a_request(a_chat()))
            await socket.answer()
        (protocol,) = set(protocols)
        protocol.timeout_keep_alive_handler()
        assert not protocol.transport.is_closing(), "it was used just now"
        assert protocol.timeout_keep_alive_task is not None, "it looks again"
        protocol.timeout_keep_alive = 0
        protocol.timeout_keep_alive_handler()
        assert await socket.reader.read() == b""


async def test_a_connection_with_a_running_call_is_not_idle(protocols: list[HotProtocol]) -> None:
    async with a_coordinator(COLOCATED) as rig, connected(rig) as socket:
        engine = rig.engines["small-1"]
        engine.faults.hang()
        socket.writer.write(a_request(a_chat()))
        await until(lambda: engine.running, "the call runs")
        protocols[0].timeout_keep_alive = 0
        protocols[0].timeout_keep_alive_handler()
        engine.faults.release()
        head, _ = await socket.answer()
        assert head.startswith(b"HTTP/1.1 200")
