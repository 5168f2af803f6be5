"""The fake engine for load tests: prepared bytes straight on the socket.

It reads of a request only what picks the answer (path, `stream`, `include_usage`,
`do_remote_decode`) and neither records, tokenises nor caches: a load test should measure what
stands in front of it. A stream goes out one event per turn of the event loop, as tokens do.
Hosts: bench.coordinator_overhead, `python -m bench.fake_engine --fast`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from bench.fake_engine.replies import Answer, model_list, rendered
from bench.fake_engine.tokens import WordVocabulary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from policy.vocabulary import Role

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_STREAM = re.compile(rb'"stream": ?true')
_USAGE = re.compile(rb'"include_usage": ?true')
_HANDOFF = re.compile(rb'"do_remote_decode": ?true')
_PROMPT_IDS = list(range(64))
_BYTES_PER_TOKEN = 4

Events = tuple[bytes, ...]


class PreparedReplies:
    """Every answer of one engine as bytes, HTTP framing included."""

    def __init__(self, model: str, role: Role, output_tokens: int) -> None:
        self._model = model
        self.generated = 0
        """Generating requests answered so far."""
        self.health = _http(b"", "text/plain")
        self.models = _json(model_list(model, 1 << 20))
        self.version = _json({"version": "0.32.0"})
        self.not_found = _http(b'{"error":{"message":"Not Found","code":404}}', status=404)
        self._whole: dict[tuple[bool, bool], bytes] = {}
        self._events: dict[tuple[bool, bool], Events] = {}
        handoff = _handoff(model, role)
        for is_chat in (True, False):
            plain = self._answer(is_chat, output_tokens, with_usage=False, handoff=None)
            counted = self._answer(is_chat, output_tokens, with_usage=True, handoff=None)
            pinned = self._answer(is_chat, 1, with_usage=False, handoff=handoff)
            self._whole[is_chat, False] = _json(plain.whole())
            self._whole[is_chat, True] = _json(pinned.whole())
            self._events[is_chat, False] = _chunked(plain)
            self._events[is_chat, True] = _chunked(counted)

    def whole(self, is_chat: bool, body: bytes) -> bytes:
        return self._whole[is_chat, _HANDOFF.search(body) is not None]

    def events(self, is_chat: bool, body: bytes) -> Events:
        return self._events[is_chat, _USAGE.search(body) is not None]

    def _answer(
        self, is_chat: bool, tokens: int, *, with_usage: bool, handoff: dict[str, Any] | None
    ) -> Answer:
        vocabulary = WordVocabulary()
        return Answer(
            model=self._model,
            is_chat=is_chat,
            request_id="chatcmpl-fake" if is_chat else "cmpl-fake",
            prompt_ids=_PROMPT_IDS,
            cached_tokens=0,
            pieces=[vocabulary.word(0, at) for at in range(tokens)],
            piece_ids=[0] * tokens,
            finish_reason="stop",
            with_usage=with_usage,
            with_token_ids=False,
            kv_transfer_params=handoff,
        )


class WireEngine(asyncio.Protocol):
    """One connection: requests are answered in the order in which they arrive."""

    def __init__(self, replies: PreparedReplies, connections: set[WireEngine]) -> None:
        self._replies = replies
        self._connections = connections
        self._unread = b""
        self._transport: asyncio.Transport
        self._streaming: Events | None = None
        self._sent = 0
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's TCP transport is one, without being a subclass.
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.discard(self)

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._unread = self._unread + data if self._unread else data
        self._answer_all()

    def _answer_all(self) -> None:
        while self._streaming is None and self._unread:
            head_end = self._unread.find(b"\r\n\r\n")
            if head_end < 0:
                return
            length = _LENGTH.search(self._unread, 0, head_end)
            end = head_end + 4 + (int(length[1]) if length else 0)
            if len(self._unread) < end:
                return
            request, self._unread = self._unread[:end], self._unread[end:]
            self._answer(request.partition(b" ")[2].partition(b" ")[0], request[head_end + 4 :])

    def _answer(self, path: bytes, body: bytes) -> None:
        is_chat = path == b"/v1/chat/completions"
        if not is_chat and path != b"/v1/completions":
            self._transport.write(self._other(path, body))
            return
        self._replies.generated += 1
        if _STREAM.search(body):
            self._streaming, self._sent = self._replies.events(is_chat, body), 0
            self._send_event()
        else:
            self._transport.write(self._replies.whole(is_chat, body))

    def _send_event(self) -> None:
        events = self._streaming
        if events is None or self._transport.is_closing():
            return
        self._transport.write(events[self._sent])
        self._sent += 1
        if self._sent < len(events):
            self._loop.call_soon(self._send_event)
            return
        self._streaming = None
        self._answer_all()

    def _other(self, path: bytes, body: bytes) -> bytes:
        if path.endswith(b"/render") or path == b"/tokenize":
            return _render(path, len(body) // _BYTES_PER_TOKEN)
        known = {b"/v1/models": self._replies.models, b"/version": self._replies.version}
        known[b"/health"] = known[b"/metrics"] = self._replies.health
        return known.get(path, self._replies.not_found)


@dataclass(frozen=True, slots=True)
class Listening:
    """A fast fake engine on 127.0.0.1."""

    url: str
    replies: PreparedReplies


@contextlib.asynccontextmanager
async def listening(
    model: str, role: Role, output_tokens: int, port: int = 0
) -> AsyncIterator[Listening]:
    replies = PreparedReplies(model, role, output_tokens)
    connections: set[WireEngine] = set()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: WireEngine(replies, connections), "127.0.0.1", port, backlog=512
    )
    try:
        yield Listening(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", replies)
    finally:
        server.close()
        for connection in tuple(connections):
            connection.abort()
        # The transports close themselves in the next turn of the loop.
        await asyncio.sleep(0)


def _handoff(model: str, role: Role) -> dict[str, Any] | None:
    if role == "colocated":
        return None
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[1, 2]],
        "remote_engine_id": f"fake-{model}",
        "remote_request_id": "chatcmpl-fake",
        "remote_host": "127.0.0.1",
        "remote_port": 5600,
        "tp_size": 1,
        "remote_num_tokens": len(_PROMPT_IDS),
        "transfer_mode": "read",
    }


@functools.lru_cache(maxsize=4096)
def _render(path: bytes, tokens: int) -> bytes:
    """Ids that depend on the length alone: a longer history extends a shorter one, as it should."""
    ids = list(range(max(1, tokens)))
    if path == b"/tokenize":
        return _json({"count": len(ids), "max_model_len": 1 << 20, "tokens": ids})
    reply = rendered({}, ids, "render-fake")
    return _json([reply] if path == b"/v1/completions/render" else reply)


def _json(value: object) -> bytes:
    return _http(json.dumps(value, separators=(",", ":")).encode())


def _http(body: bytes, content_type: str = "application/json", status: int = 200) -> bytes:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def _chunked(answer: Answer) -> Events:
    """One element per SSE event; the head travels with the first, the end with the last."""
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
    )
    events = [b"%x\r\n%s\r\n" % (len(event), event) for event in answer.chunks()]
    events[0] = head + events[0]
    events[-1] += b"0\r\n\r\n"
    return tuple(events)
