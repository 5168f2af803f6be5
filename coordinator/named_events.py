"""Answers of the Responses and the Messages API: usage, their end, and streams of named events.

Here a stream names each of its events, always tells its usage, and ends with an event of its own
instead of `[DONE]`. As in coordinator.sse, chunks pass as they came, whole events only, and none is
parsed whose name says that it holds nothing for us. Pure: no I/O."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from coordinator.calls import CallKind
from coordinator.sse import Details, Told, Usage

if TYPE_CHECKING:
    from collections.abc import Callable

_END: Final = b"\n\n"

Fields = dict[str, msgspec.Raw]
_decode_fields = msgspec.json.Decoder(Fields).decode


class EventShape(NamedTuple):
    """What differs between the two."""

    end: str
    """What a whole stream ends with."""
    first: bytes
    """In the first event that follows from something computed."""
    telling: re.Pattern[bytes]
    """Finds the events that end a stream or tell its usage. JSON has no raw line breaks, so no text
    of an answer looks like one."""
    last: frozenset[bytes]
    failed: frozenset[bytes]
    """Of these, the ones that report an error."""
    read: Callable[[bytes], Told | None]
    """Of a whole body, or of a telling event's data."""
    with_cached_tokens: Callable[[bytes, int], bytes]
    """The same, everything but the hit count byte for byte."""


class EventTail:
    """Feed it every chunk; relay what it gives back."""

    __slots__ = (
        "_carry",
        "_replace_cached",
        "_shape",
        "done",
        "engine_error",
        "finish_reason",
        "has_output",
        "usage",
    )

    def __init__(self, shape: EventShape, replace_cached: int | None = None) -> None:
        self._shape = shape
        self._replace_cached = replace_cached
        self._carry = b""
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.has_output = False
        self.done = False
        """The engine said that the stream is over."""
        self.engine_error = False
        """And that it is by an error."""

    @property
    def end(self) -> str:
        return self._shape.end

    def feed(self, chunk: bytes) -> bytes:
        """The bytes to relay now; possibly none."""
        if self._carry or not chunk.endswith(_END):
            data = self._carry + chunk
            cut = data.rfind(_END)
            end = cut + len(_END) if cut >= 0 else 0
            chunk, self._carry = data[:end], data[end:]
        self.has_output = self.has_output or self._shape.first in chunk
        if self._shape.telling.search(chunk) is None:
            return chunk
        return b"".join(self._told(event) + _END for event in chunk.split(_END)[:-1])

    def _told(self, event: bytes) -> bytes:
        if self._shape.telling.match(event + b"\n") is None:
            return event
        head, _, data = event.partition(b"\ndata:")
        name = head.removeprefix(b"event:").strip()
        self.done |= name in self._shape.last
        self.engine_error |= name in self._shape.failed
        found = self._shape.read(data)
        if found is None:
            return event
        self.finish_reason = found.finish_reason or self.finish_reason
        if found.usage is None:
            return event
        self.usage, cached = found.usage, self._replace_cached
        if cached is None or found.usage.cached_tokens == cached:
            return event
        return head + b"\ndata: " + self._shape.with_cached_tokens(data, cached)


def _telling(*names: str) -> re.Pattern[bytes]:
    return re.compile(rb"(?:^|\n\n)event: ?(?:%b)\r?\n" % "|".join(names).encode())


# --- Anthropic's Messages API: what was found in a cache is not in `input_tokens`.


class _MessagesUsage(msgspec.Struct):
    input_tokens: int
    output_tokens: int = 0
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _MessagesEnd(msgspec.Struct):
    stop_reason: str | None = None


class _Message(msgspec.Struct):
    """A whole body, or the data of `message_delta`."""

    usage: _MessagesUsage | None = None
    stop_reason: str | None = None
    delta: _MessagesEnd | None = None


_decode_message = msgspec.json.Decoder(_Message).decode


def _read_message(data: bytes) -> Told | None:
    try:
        message = _decode_message(data)
    except msgspec.DecodeError:
        return None
    reason = message.stop_reason if message.delta is None else message.delta.stop_reason
    if message.usage is None:
        return Told(None, reason)
    told = message.usage
    cached, created = told.cache_read_input_tokens, told.cache_creation_input_tokens
    usage = Usage(
        prompt_tokens=told.input_tokens + (cached or 0) + (created or 0),
        completion_tokens=told.output_tokens,
        prompt_tokens_details=Details(cached),
    )
    return Told(usage, reason)


def _message_with_cached(data: bytes, cached_tokens: int) -> bytes:
    fields = _decode_fields(data)
    usage: dict[str, Any] = msgspec.json.decode(fields["usage"])
    total = usage["input_tokens"] + (usage.get("cache_read_input_tokens") or 0)
    usage["input_tokens"] = max(0, total - cached_tokens)
    usage["cache_read_input_tokens"] = cached_tokens
    fields["usage"] = msgspec.Raw(msgspec.json.encode(usage))
    return msgspec.json.encode(fields)


# --- OpenAI's Responses API: a stream's last event holds the whole body.


class _ResponseUsage(msgspec.Struct):
    input_tokens: int
    output_tokens: int = 0
    input_tokens_details: Details | None = None


class _Incomplete(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    status: str | None = None
    incomplete_details: _Incomplete | None = None
    usage: _ResponseUsage | None = None


class _ResponseEvent(msgspec.Struct):
    """A whole body has no `response`; an event has nothing else of interest."""

    response: _Response | None = None
    status: str | None = None
    incomplete_details: _Incomplete | None = None
    usage: _ResponseUsage | None = None


_decode_response = msgspec.json.Decoder(_ResponseEvent).decode


def _read_response(data: bytes) -> Told | None:
    try:
        found = _decode_response(data)
    except msgspec.DecodeError:
        return None
    response = found.response or found
    details = response.incomplete_details
    reason = response.status if details is None else details.reason
    if response.usage is None:
        return Told(None, reason)
    told = response.usage
    usage = Usage(told.input_tokens, told.output_tokens, told.input_tokens_details)
    return Told(usage, reason)


def _response_with_cached(data: bytes, cached_tokens: int) -> bytes:
    fields = _decode_fields(data)
    if "response" in fields:
        inner = _response_with_cached(fields["response"], cached_tokens)
        fields["response"] = msgspec.Raw(inner)
        return msgspec.json.encode(fields)
    usage: dict[str, Any] = msgspec.json.decode(fields["usage"])
    details = usage.get("input_tokens_details") or {}
    usage["input_tokens_details"] = {**details, "cached_tokens": cached_tokens}
    fields["usage"] = msgspec.Raw(msgspec.json.encode(usage))
    return msgspec.json.encode(fields)


EVENT_SHAPES: Final = {
    CallKind.MESSAGES: EventShape(
        end="message_stop",
        first=b"event: message_start",
        telling=_telling("message_delta", "message_stop", "error"),
        last=frozenset({b"message_stop", b"error"}),
        failed=frozenset({b"error"}),
        read=_read_message,
        with_cached_tokens=_message_with_cached,
    ),
    CallKind.RESPONSES: EventShape(
        end="response.completed",
        first=b"event: response.output",
        telling=_telling(
            r"response\.completed", r"response\.incomplete", r"response\.failed", "error"
        ),
        last=frozenset(
            {b"response.completed", b"response.incomplete", b"response.failed", b"error"}
        ),
        failed=frozenset({b"response.failed", b"error"}),
        read=_read_response,
        with_cached_tokens=_response_with_cached,
    ),
}
