"""The two hot endpoints as one raw ASGI application: body in, checks, `pd_flow.serve`, bytes out.

FastAPI's own request handling would cost more than the rest of the coordinator, so it is left to
the other endpoints."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from coordinator.call_body import read_body
from coordinator.calls import CallKind
from coordinator.client_watch import ClientWatch
from coordinator.errors import (
    BodyTooLarge,
    CallError,
    ClientError,
    ContentTypeUnsupported,
    MethodNotAllowed,
)
from coordinator.pd_flow import Request
from coordinator.sse import error_event

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

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


class AsgiReply:
    """The client's side of a call, over one ASGI `send`."""

    __slots__ = ("_send", "is_over", "is_started")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_started = False
        self.is_over = False

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
        self, content_type: bytes, headers: list[tuple[bytes, bytes]], data: bytes, status: int
    ) -> None:
        length = (b"content-length", str(len(data)).encode())
        await self.start(content_type, [*headers, length], status)
        await self.write(data, last=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiApi:
    """An ASGI application for the paths in KINDS."""

    flow: PdFlow
    metrics: Metrics
    max_body_bytes: int
    clock: Callable[[], float]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = AsgiReply(send)
        try:
            request = await self._request(scope, receive)
            await self._serve(request, reply, ClientWatch(scope, receive, reply))
        except ClientGone:
            return
        except CallError as error:
            await self._tell(reply, error)

    async def _request(self, scope: Scope, receive: Receive) -> Request:
        """Everything that can be refused without knowing a model."""
        if scope["method"] != "POST":
            raise MethodNotAllowed(scope["method"])
        headers = dict(scope["headers"])
        content_type = headers.get(b"content-type", b"")
        if content_type.partition(b";")[0].strip().lower() != JSON:
            raise ContentTypeUnsupported(content_type.decode("latin-1"))
        raw = await self._read(headers.get(b"content-length"), receive)
        arrived_s = self.clock()
        return Request(read_body(KINDS[scope["path"]], raw), headers, arrived_s)

    async def _read(self, announced: bytes | None, receive: Receive) -> bytes:
        limit = self.max_body_bytes
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

    async def _serve(self, request: Request, reply: AsgiReply, watch: ClientWatch) -> None:
        """Runs the call, and cancels it when the client goes away."""
        try:
            await self.flow.serve(request, reply)
        except asyncio.CancelledError:
            # By the watch: over. By anybody else (a server that stops): not ours to eat.
            if not watch.takes_back():
                raise
        finally:
            watch.end()

    async def _tell(self, reply: AsgiReply, error: CallError) -> None:
        if error.status >= 500:
            _log.warning("call failed: %s", error)
        if reply.is_over:
            return  # the stream had its [DONE], or reported the engine's error itself
        if reply.is_started:
            await reply.write(error_event(error.body()), last=True)
            return
        if isinstance(error, ClientError):
            self.metrics.refused(error.status)
        headers = []
        if error.retry_after_s is not None:
            headers.append((b"retry-after", str(error.retry_after_s).encode()))
        await reply.whole(JSON, headers, error.body(), error.status)
