"""The bytes of an answer, as they were relayed, turned into the assistant message they spell.

The hot path only appends chunks; this parser is fed in batches from the shadow flow's background
task. It reads an SSE stream or one JSON body and tells them apart by the first byte. Pure: no
I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from coordinator.answer_parts import READERS, PartsUnreadable

if TYPE_CHECKING:
    from coordinator.answer_parts import CallPart, Part
    from coordinator.calls import CallKind


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of the answer; `arguments` is the JSON text that the model wrote."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is known of an answer. `complete`: nothing will follow."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """Finished calls only: the last one is missing while it is still being streamed."""
    calling: bool = False
    """The stream has reached the tool calls: the text before them is final."""
    complete: bool = False


NO_ANSWER_YET = Answer()


@dataclass(slots=True)
class _OpenCall:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class AnswerText:
    """Accumulates one answer. `feed` any split of the bytes, then ask for `answer`."""

    __slots__ = (
        "_body",
        "_calls",
        "_content",
        "_is_json",
        "_reader",
        "_reasoning",
        "_rest",
        "readable",
        "text_bytes",
    )

    def __init__(self, kind: CallKind) -> None:
        self._reader = READERS[kind]()
        self._rest = b""
        self._body: list[bytes] = []
        self._is_json: bool | None = None
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, _OpenCall] = {}
        self.text_bytes = 0
        """UTF-8 bytes of text so far: what a token estimate is made of."""
        self.readable = True
        """False after a chunk that we cannot read: text may be missing, nothing is built on it."""

    def feed(self, data: bytes) -> None:
        """Parses the complete events in `data`; an incomplete one waits for its rest."""
        if self._is_json is None:
            data = self._rest + data
            self._rest = data
            start = data.lstrip()[:1]
            if not start:
                return
            self._is_json = start == b"{"
            self._rest = b""
        if self._is_json:
            self._body.append(data)
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._read_line(line)

    def answer(self, *, complete: bool) -> Answer:
        """What the answer spells. `complete` says that the last byte has been fed."""
        if complete:
            self._read_rest()
        calls = [self._calls[index] for index in sorted(self._calls)]
        done = calls if complete else calls[:-1]
        return Answer(
            content="".join(self._content),
            reasoning="".join(self._reasoning),
            tool_calls=tuple(ToolCall(c.id, c.name, "".join(c.arguments)) for c in done),
            calling=bool(calls),
            complete=complete,
        )

    def _read_rest(self) -> None:
        if self._is_json:
            self._read_chunk(b"".join(self._body))
            self._body.clear()
        elif self._rest:
            self._read_line(self._rest)
            self._rest = b""

    def _read_line(self, line: bytes) -> None:
        if not line.startswith(b"data:"):
            return
        payload = line[5:].strip()
        if payload and payload != b"[DONE]":
            self._read_chunk(payload)

    def _read_chunk(self, payload: bytes) -> None:
        try:
            for part in self._reader.read(payload):
                self._take(part)
        except (msgspec.MsgspecError, PartsUnreadable):
            self.readable = False

    def _take(self, part: Part) -> None:
        if part.content:
            self._add(self._content, part.content)
        if part.reasoning:
            self._add(self._reasoning, part.reasoning)
        if part.call is not None:
            self._take_call(part.call)

    def _take_call(self, part: CallPart) -> None:
        call = self._calls.setdefault(part.at, _OpenCall())
        call.id = part.id or call.id
        call.name = part.name or call.name
        if part.arguments:
            self._add(call.arguments, part.arguments)

    def _add(self, parts: list[str], text: str) -> None:
        parts.append(text)
        # Lone surrogates are legal in JSON strings and have no UTF-8 form.
        self.text_bytes += len(text.encode("utf-8", "surrogatepass"))
