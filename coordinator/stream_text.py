"""The bytes of an answer, as they were relayed, turned into the assistant message they spell.

The hot path only appends chunks; this parser is fed in batches from the shadow flow's background
task. It reads an SSE stream or one JSON body, tells them apart by the first byte, and keeps
choice 0: that is the one an agent continues with. Pure: no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec


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


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _ToolDelta(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_ToolDelta] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    text: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = msgspec.field(default_factory=list)


_CHUNK = msgspec.json.Decoder(_Chunk)


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
        "_reasoning",
        "_rest",
        "readable",
        "text_bytes",
    )

    def __init__(self) -> None:
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
            chunk = _CHUNK.decode(payload)
        except msgspec.MsgspecError:
            self.readable = False
            return
        for choice in chunk.choices:
            if choice.index == 0:
                self._take(choice)

    def _take(self, choice: _Choice) -> None:
        if choice.text:
            self._add(self._content, choice.text)
        delta = choice.delta or choice.message
        if delta is None:
            return
        if delta.content:
            self._add(self._content, delta.content)
        if reasoning := delta.reasoning or delta.reasoning_content:
            self._add(self._reasoning, reasoning)
        for position, part in enumerate(delta.tool_calls or ()):
            self._take_tool(position if part.index is None else part.index, part)

    def _take_tool(self, index: int, part: _ToolDelta) -> None:
        call = self._calls.setdefault(index, _OpenCall())
        call.id = part.id or call.id
        if part.function is None:
            return
        call.name = part.function.name or call.name
        if part.function.arguments:
            self._add(call.arguments, part.function.arguments)

    def _add(self, parts: list[str], text: str) -> None:
        parts.append(text)
        # Lone surrogates are legal in JSON strings and have no UTF-8 form.
        self.text_bytes += len(text.encode("utf-8", "surrogatepass"))
