"""The tail of a stream: finds the usage chunk, and keeps every event whole.

Chunks pass as they came. Only what no complete event ends is held back, so an event that was split
across two reads is recognised, and an engine that dies inside one leaves no half event behind. No
chunk is parsed before a cheap test says that it may carry usage. Pure: no I/O."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

_END: Final = b"\n\n"
_USAGE: Final = b'"usage":'
_DONE: Final = b"data: [DONE]\n\n"
_ERROR: Final = b'data: {"error"'
_CHOICE: Final = b'"finish_reason"'
_FINISH: Final = re.compile(rb'"finish_reason":\s*"(\w+)"')


class Details(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """Of a stream's usage chunk or of a whole body."""

    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: Details | None = None

    @property
    def cached_tokens(self) -> int:
        details = self.prompt_tokens_details
        return 0 if details is None or details.cached_tokens is None else details.cached_tokens


class Told(NamedTuple):
    """What an answer says of itself."""

    usage: Usage | None
    finish_reason: str | None


class Choice(msgspec.Struct):
    finish_reason: str | None = None


class Answer(msgspec.Struct):
    """What we read of a whole body, or of a usage chunk."""

    choices: list[Choice] = []
    usage: Usage | None = None


_decode_answer = msgspec.json.Decoder(Answer).decode


def read_answer(body: bytes) -> Answer | None:
    """None for something that is not an OpenAI answer."""
    try:
        return _decode_answer(body)
    except msgspec.DecodeError:
        return None


def told_by(body: bytes) -> Told | None:
    """None for something that is not an OpenAI answer."""
    answer = read_answer(body)
    if answer is None:
        return None
    return Told(answer.usage, answer.choices[0].finish_reason if answer.choices else None)


class StreamTail:
    """Feed it every chunk; relay what it gives back."""

    __slots__ = (
        "_before",
        "_carry",
        "_last",
        "_replace_cached",
        "_usage_wanted",
        "done",
        "engine_error",
        "usage",
    )

    end = "[DONE]"
    has_output = True
    """The engine says nothing before its first token."""

    def __init__(self, *, usage_wanted: bool, replace_cached: int | None = None) -> None:
        self._usage_wanted = usage_wanted
        self._replace_cached = replace_cached
        self._carry = b""
        self._last = b""
        self._before = b""
        self.usage: Usage | None = None
        self.done = False
        """The engine said that the stream is complete."""
        self.engine_error = False
        """The engine reported an error inside the stream."""

    def feed(self, chunk: bytes) -> bytes:
        """The bytes to relay now; possibly none."""
        if self._carry or not chunk.endswith(_END):
            chunk = self._whole_events(chunk)
            if not chunk:
                return b""
        if chunk.endswith(_DONE):  # text that spells it is followed by the rest of its JSON
            self.done = True
        if _ERROR in chunk:
            self.engine_error = True
        if _USAGE in chunk:
            return self._with_usage(chunk)
        if chunk != _DONE:
            self._before, self._last = self._last, chunk
        return chunk

    @property
    def finish_reason(self) -> str | None:
        """Of the last choice that ended; looked up once, when the stream is over."""
        for events in (self._last, self._before):
            found = _FINISH.findall(events)
            if found:
                return str(found[-1], "ascii")
        return None

    def _whole_events(self, chunk: bytes) -> bytes:
        data = self._carry + chunk
        cut = data.rfind(_END)
        end = cut + len(_END) if cut >= 0 else 0
        self._carry = data[end:]
        return data[:end]

    def _with_usage(self, chunk: bytes) -> bytes:
        """Takes the usage chunk out unless the client asked for it."""
        relayed = []
        for event in chunk.split(_END)[:-1]:
            answer = read_answer(event[5:]) if _USAGE in event else None
            if answer is not None and answer.usage is not None:
                self.usage = answer.usage
                if not answer.choices:
                    if self._usage_wanted:
                        relayed.append(self._corrected(event))
                    continue
            relayed.append(event)
        if _CHOICE in chunk:
            self._before, self._last = self._last, chunk
        return b"".join(event + _END for event in relayed)

    def _corrected(self, event: bytes) -> bytes:
        cached = self._replace_cached
        if cached is None or self.usage is None or self.usage.cached_tokens == cached:
            return event
        return b"data: " + with_cached_tokens(event[5:], cached)


def with_cached_tokens(body: bytes, cached_tokens: int) -> bytes:
    """The same answer with another hit count in its usage; everything else byte for byte."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    usage = msgspec.json.decode(fields["usage"])
    details = usage.get("prompt_tokens_details") or {}
    usage["prompt_tokens_details"] = {**details, "cached_tokens": cached_tokens}
    fields["usage"] = msgspec.Raw(msgspec.json.encode(usage))
    return msgspec.json.encode(fields)
