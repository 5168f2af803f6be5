"""Pieces of an answer, as each API writes them: text, reasoning, and calls of tools.

A reader takes the events of one stream in order, or one whole body, and gives the pieces that they
add. It reads choice 0, the one an agent continues with, and refuses what it cannot put back
together exactly as the client will send it. Pure. Host: coordinator.stream_text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from coordinator.calls import CallKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


class CallPart(NamedTuple):
    """Of the call at this place."""

    at: int
    id: str | None = None
    name: str | None = None
    arguments: str | None = None


class Part(NamedTuple):
    content: str | None = None
    reasoning: str | None = None
    call: CallPart | None = None


class PartsUnreadable(Exception):
    """Something that we do not know, or cannot put back together."""


class Reader(Protocol):
    def read(self, payload: bytes) -> Iterable[Part]:
        """Of one event's data, or of a whole body; raises PartsUnreadable, MsgspecError."""


# --- Chat Completions and Completions


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


class ChoiceReader:
    _decode = msgspec.json.Decoder(_Chunk).decode

    def read(self, payload: bytes) -> Iterator[Part]:
        for choice in self._decode(payload).choices:
            if choice.index == 0:
                yield from _parts_of(choice)


def _parts_of(choice: _Choice) -> Iterator[Part]:
    if choice.text:
        yield Part(content=choice.text)
    delta = choice.delta or choice.message
    if delta is None:
        return
    yield Part(content=delta.content, reasoning=delta.reasoning or delta.reasoning_content)
    for position, part in enumerate(delta.tool_calls or ()):
        function = part.function or _Function()
        index = position if part.index is None else part.index
        yield Part(call=CallPart(index, part.id, function.name, function.arguments))


# --- Anthropic's Messages API


_NO_INPUT: Final = msgspec.Raw(b"{}")


class _Block(msgspec.Struct):
    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = _NO_INPUT


class _BlockDelta(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None


class _MessageEvent(msgspec.Struct):
    """An event of a stream, or a whole body."""

    type: str
    index: int = 0
    content_block: _Block | None = None
    delta: _BlockDelta | None = None
    content: list[_Block] | None = None


class BlockReader:
    _decode = msgspec.json.Decoder(_MessageEvent).decode

    def __init__(self) -> None:
        self._text_blocks = 0

    def read(self, payload: bytes) -> Iterator[Part]:
        event = self._decode(payload)
        if event.content_block is not None:
            yield self._block(event.index, event.content_block, is_whole=False)
        elif event.type == "content_block_delta" and event.delta is not None:
            delta = event.delta
            call = None
            if delta.partial_json is not None:
                call = CallPart(event.index, arguments=delta.partial_json)
            yield Part(delta.text, delta.thinking, call)
        for index, block in enumerate(event.content or ()):
            yield self._block(index, block, is_whole=True)

    def _block(self, index: int, block: _Block, *, is_whole: bool) -> Part:
        if block.type == "tool_use":
            # A stream begins with an empty object and then writes the real one.
            arguments = bytes(block.input).decode() if is_whole else None
            return Part(call=CallPart(index, block.id, block.name, arguments))
        if block.type == "thinking":
            return Part(reasoning=block.thinking)
        self._text_blocks += 1
        if block.type != "text" or self._text_blocks > 1:
            # A template may see two blocks of text as something else than one.
            raise PartsUnreadable(f"block {index} of the answer is {block.type!r}")
        return Part(content=block.text)


# --- OpenAI's Responses API


class _Content(msgspec.Struct):
    text: str | None = None


class _Item(msgspec.Struct):
    type: str
    content: list[_Content] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None


class _ItemEvent(msgspec.Struct):
    """An event of a stream, or a whole body."""

    type: str | None = None
    output_index: int = 0
    delta: str | None = None
    item: _Item | None = None
    output: list[_Item] | None = None


class ItemReader:
    _decode = msgspec.json.Decoder(_ItemEvent).decode

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def read(self, payload: bytes) -> Iterator[Part]:
        event = self._decode(payload)
        if event.type == "response.output_item.added" and event.item is not None:
            yield self._item(event.output_index, event.item, is_whole=False)
        elif event.type == "response.output_text.delta":
            yield Part(content=event.delta)
        elif event.type == "response.reasoning_text.delta":
            yield Part(reasoning=event.delta)
        elif event.type == "response.function_call_arguments.delta":
            yield Part(call=CallPart(event.output_index, arguments=event.delta))
        for index, item in enumerate(event.output or ()):
            yield self._item(index, item, is_whole=True)

    def _item(self, index: int, item: _Item, *, is_whole: bool) -> Part:
        if item.type == "function_call" and item.namespace is None:
            arguments = item.arguments if is_whole else None
            return Part(call=CallPart(index, item.call_id, item.name, arguments))
        is_known = item.type in ("message", "reasoning") and len(item.content or ()) <= 1
        if not is_known or item.type in self._seen:
            # A second one of these becomes a message of its own.
            raise PartsUnreadable(f"item {index} of the answer is {item.type!r}")
        self._seen.add(item.type)
        text = "".join(part.text or "" for part in item.content or ()) if is_whole else None
        return Part(reasoning=text) if item.type == "reasoning" else Part(content=text)


READERS: Final[Mapping[CallKind, Callable[[], Reader]]] = {
    CallKind.CHAT: ChoiceReader,
    CallKind.TEXT: ChoiceReader,
    CallKind.MESSAGES: BlockReader,
    CallKind.RESPONSES: ItemReader,
}
