"""The two hot endpoints without ASGI: uvicorn's connection, our own request and reply on it.

A scope, an event, messages as dictionaries and a write for the head alone cost a call more than all
that the coordinator does about it. So a plain POST of JSON to a hot path skips them: its call
begins when its body is complete, and its head leaves with its first bytes. Whatever asks for more
of HTTP (a body of unknown length, `Expect`, an upgrade, pipelining) and every other path goes to
the ASGI application on the same connection.

Rejected: granian, a server in Rust, whose call into Python is ASGI again."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from coordinator.calls import CallKind
from coordinator.client_watch import ClientWatch
from coordinator.error_shapes import error_body
from coordinator.errors import CallError
from coordinator.openai_api import JSON, is_json

if TYPE_CHECKING:
    from coordinator.openai_api import OpenAiApi

    Headers = list[tuple[bytes, bytes]]

_KINDS: Final = {kind.path.encode(): kind for kind in CallKind}
_MORE_THAN_PLAIN: Final = frozenset({b"expect", b"transfer-encoding", b"upgrade"})
MAX_HEAD_BYTES: Final = 64 * 1024
"""Of a request line and headers; httptools has no limit of its own."""
_NOBODY_WAITS: Final = asyncio.Event()

_log = logging.getLogger(__name__)


class HotProtocol(HttpToolsProtocol):
    """One client connection."""

    def __init__(self, api: OpenAiApi, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self._api = api
        self._reading: HotExchange | None = None
        self._answering: HotExchange | None = None
        self._is_in_head = False
        self._head_bytes = 0
        self._waits_since_s = 0.0

    def data_received(self, data: bytes) -> None:
        was_in_head = self._is_in_head
        super().data_received(data)
        if was_in_head and self._is_in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response("Request head too large.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head, self._head_bytes = True, 0
        self._waits_since_s = self.loop.time()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        kind = _KINDS.get(self.url)
        headers = dict(self.headers)
        if kind is None or not self._is_plain(headers):
            super().on_headers_complete()
            return
        self._reading = HotExchange(self, kind, headers, self.parser.should_keep_alive())
        # In the place of uvicorn's own, so that it queues what is pipelined behind this one.
        self.cycle = self._reading  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        if self._reading is not None:
            self._reading.body.append(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._reading is None:
            super().on_message_complete()
            return
        exchange, self._reading = self._reading, None
        exchange.more_body = False
        self._answering = exchange
        self.tasks.add(self.loop.create_task(exchange.run(self._api)))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        if self._answering is not None:
            self._answering.client_left()

    async def drained(self) -> None:
        """For a client that reads slowly. One that reads nothing is left, and its call ends."""
        try:
            async with asyncio.timeout(self.timeout_keep_alive):
                await self.flow.drain()
        except TimeoutError:
            self.transport.abort()

    def answered(self, exchange: HotExchange, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if self._answering is exchange:  # its client may have sent the next request already
            self._answering = None

    # --- keep-alive: one timer that looks again, instead of one set and cancelled per request. A
    # request that has begun must be whole within the same time: uvicorn would wait for ever.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waits_since_s = self.loop.time()
        self._look_again(self.timeout_keep_alive)

    def on_response_complete(self) -> None:
        self._waits_since_s = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._look_again(self.timeout_keep_alive)
        if self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        self.flow.resume_reading()

    def _unset_keepalive_if_required(self) -> None:
        pass

    def _look_again(self, after_s: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(
            after_s, self.timeout_keep_alive_handler
        )

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if not self._waits_for_client():
            return  # its answer sets the timer
        left_s = self._waits_since_s + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self._look_again(left_s)
        else:
            super().timeout_keep_alive_handler()

    def _waits_for_client(self) -> bool:
        """For a request, or for the rest of one. What is pipelined waits for us."""
        cycle = self.cycle
        return not self.pipeline and (cycle is None or cycle.response_complete or cycle.more_body)

    def _is_plain(self, headers: dict[bytes, bytes]) -> bool:
        length = headers.get(b"content-length", b"")
        return (
            length.isdigit()
            and int(length) <= self._api.max_body_bytes
            and is_json(headers)
            and _MORE_THAN_PLAIN.isdisjoint(headers)
            and self.parser.get_method() == b"POST"
            and self.parser.get_http_version() == "1.1"
            and (self.cycle is None or self.cycle.response_complete)
        )


class HotExchange:
    """A request, and the client's side of its call. Its public fields up to `keep_alive` are what
    uvicorn's protocol wants of a cycle."""

    message_event = _NOBODY_WAITS

    def __init__(
        self, protocol: HotProtocol, kind: CallKind, headers: dict[bytes, bytes], keep_alive: bool
    ) -> None:
        self.response_complete = False
        self.disconnected = False
        self.more_body = True
        self.keep_alive = keep_alive
        self.body: list[bytes] = []
        self.is_started = False
        self.is_over = False
        self.events = 0
        self._protocol = protocol
        self._kind = kind
        self._headers = headers
        self._watch: ClientWatch | None = None
        self._head = b""

    async def run(self, api: OpenAiApi) -> None:
        watch = self._watch = ClientWatch(self)
        body = self.body[0] if len(self.body) == 1 else b"".join(self.body)
        self.body.clear()
        try:
            if not self.disconnected:
                await api.answer(self._kind, self._headers, body, self, watch)
                assert self.is_over or self.disconnected, "the call has no answer"
        except asyncio.CancelledError:
            self.keep_alive = False
            await api.cut_off(self._kind, self)
        except Exception as error:
            await self._give_up(error)
        finally:
            self._watch = None
            self._protocol.answered(self, watch.task)

    def client_left(self) -> None:
        self.disconnected = True
        if self._watch is not None:
            self._watch.client_left()

    # --- the reply

    async def start(self, content_type: bytes, headers: Headers) -> None:
        self._head = self._head_of(200, content_type, headers, b"transfer-encoding: chunked")
        self.is_started = True

    async def write(self, data: bytes, last: bool = False) -> None:
        self.is_over = last
        framed = b"%b%x\r\n%b\r\n" % (self._head, len(data), data)
        self._head = b""
        await self._send(framed + b"0\r\n\r\n" if last else framed, last)

    async def whole(
        self, content_type: bytes, headers: Headers, data: bytes, status: int = 200
    ) -> None:
        head = self._head_of(status, content_type, headers, b"content-length: %d" % len(data))
        self.is_started = self.is_over = True
        await self._send(head + data, last=True)

    def _head_of(self, status: int, content_type: bytes, headers: Headers, framing: bytes) -> bytes:
        lines = [
            b"%b: %b" % header for header in self._protocol.server_state.default_headers + headers
        ]
        lines += (b"content-type: " + content_type, framing)
        if not self.keep_alive:
            lines.append(b"connection: close")
        head = b"\r\n".join(lines)
        # A line break inside a value would be a header of somebody else's making.
        assert head.count(b"\n") == head.count(b"\r") == len(lines) - 1, head
        return STATUS_LINE[status] + head + b"\r\n\r\n"

    async def _send(self, data: bytes, last: bool) -> None:
        protocol = self._protocol
        if protocol.flow.write_paused and not self.disconnected:
            await protocol.drained()
        if self.disconnected:
            return
        protocol.transport.write(data)
        if last:
            self.response_complete = True
            if not self.keep_alive:
                protocol.transport.close()
            protocol.on_response_complete()

    async def _give_up(self, error: Exception) -> None:
        """A bug of ours: the client is told, or at least let go."""
        _log.error("a call ended by %r", error, exc_info=error)
        if self.is_started:
            self._protocol.transport.close()
        else:
            self.keep_alive = False
            failed = CallError("internal error")
            await self.whole(JSON, [], error_body(self._kind, failed), failed.status)
