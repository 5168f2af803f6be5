"""The two hot endpoints: body in, checks, `pd_flow.serve`, bytes out.

`answer` is the door; coordinator.hot_protocol opens it for most requests. As a raw ASGI application
it serves the others, and every one under another server. FastAPI's own request handling would cost
more than the rest of the coordinator, so it is left to the other endpoints."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from coordinator.call_body import read_body
from coordinator.calls import CallKind
from coordinator.client_watch import watching
from coordinator.delivery import Reply
from coordinator.error_shapes import error_body, error_event
from coordinator.errors import (
    BodyTooLarge,
    CallError,
    ClientError,
    ContentTypeUnsupported,
    MethodNotAllowed,
    ShuttingDown,
)
from coordinator.pd_flow import Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, MutableMapping

    from coordinator.admission import Admission
    from coordinator.call_story import CallStories
    from coordinator.client_watch import ClientWatch
    from coordinator.clients import Clients
    from coordinator.metrics import Metrics
    from coordinator.pd_flow import PdFlow

    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
    Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

KINDS: Final = {kind.path: kind for kind in CallKind}
JSON: Final = b"application/json"

_log = logging.getLogger(__name__)


class ClientGone(Exception):
    """The client left while its body was still on the way."""


class CallReply(Reply, Protocol):
    """The client's side of a call, and how far it has come."""

    is_started: bool
    is_over: bool
    """Its last byte is on the way."""
    events: int
    """Of its stream, so far."""


class AsgiReply:
    """The client's side of a call, over one ASGI `send`."""

    __slots__ = ("_send", "events", "is_over", "is_started")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_started = False
        self.is_over = False
        self.events = 0

    async def start(
        self, content_type: bytes, headers: list[tuple[bytes, bytes]], status: int = 200
    ) -> None:
        self.is_started = True
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"content-type", content_type), *headers],
            }
        )

    async def write(self, data: bytes, last: bool = False) -> None:
        self.is_over = last
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def whole(
        self,
        content_type: bytes,
        headers: list[tuple[bytes, bytes]],
        data: bytes,
        status: int = 200,
    ) -> None:
        length = (b"content-length", b"%d" % len(data))
        await self.start(content_type, [*headers, length], status)
        await self.write(data, last=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiApi:
    """Answers the calls of the hot paths; also an ASGI application for the paths in KINDS."""

    flow: PdFlow
    clients: Clients
    admission: Admission
    metrics: Metrics
    stories: CallStories
    max_body_bytes: int
    clock: Callable[[], float]

    async def answer(
        self,
        kind: CallKind,
        headers: Mapping[bytes, bytes],
        body: bytes,
        reply: CallReply,
        watch: ClientWatch,
    ) -> None:
        """The call of one request whose body is complete; a client that leaves cancels it."""
        try:
            try:
                with self.stories.begin(kind, headers) as story:
                    arrived_s, client = self.clock(), self.clients.of(headers)
                    story.client = client
                    request = Request(read_body(kind, body), headers, arrived_s, client, story)
                    lane = await self.admission.enter(client)
                    try:
                        await self.flow.serve(request, reply)
                    finally:
                        self.admission.leave(lane)
            except CallError as error:
                await self._tell(kind, reply, error)
        except asyncio.CancelledError:
            # By the watch: over. By anybody else (a server that stops): not ours to eat.
            if not watch.takes_back():
                raise

    async def cut_off(self, kind: CallKind, reply: CallReply) -> None:
        """This coordinator stops: the client is told, whatever it has got."""
        await self._tell(kind, reply, ShuttingDown())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind, reply = KINDS[scope["path"]], AsgiReply(send)
        headers = dict(scope["headers"])
        try:
            body = await self._body(scope["method"], headers, receive)
        except ClientGone:
            return
        except CallError as error:
            await self._tell(kind, reply, error)
            return
        with watching(receive, reply) as watch:
            await self.answer(kind, headers, body, reply, watch)

    async def _body(self, method: str, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        """After everything that can be refused without it."""
        if method != "POST":
            raise MethodNotAllowed(method)
        if not is_json(headers):
            raise ContentTypeUnsupported(headers.get(b"content-type", b"").decode("latin-1"))
        limit = self.max_body_bytes
        announced = headers.get(b"content-length")
        if announced is not None and announced.isdigit() and int(announced) > limit:
            raise BodyTooLarge(limit, int(announced))
        parts: list[bytes] = []
        size = 0
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            more = message.get("more_body", False)
            size += len(part)
            if size > limit:
                raise BodyTooLarge(limit)
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _tell(self, kind: CallKind, reply: CallReply, error: CallError) -> None:
        if error.status >= 500:
            _log.warning("call failed: %s", error)
        if reply.is_over:
            return  # the stream had its [DONE], or reported the engine's error itself
        if reply.is_started:
            await reply.write(error_event(kind, error, reply.events), last=True)
            return
        if isinstance(error, ClientError):
            self.metrics.refused(error.status)
        headers = []
        if error.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % error.retry_after_s))
        await reply.whole(JSON, headers, error_body(kind, error), error.status)


def is_json(headers: Mapping[bytes, bytes]) -> bool:
    content_type = headers.get(b"content-type", b"")
    return content_type == JSON or content_type.partition(b";")[0].strip().lower() == JSON
