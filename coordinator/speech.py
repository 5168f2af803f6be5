"""How each API writes down what comes next: an answer, a user's message, results of tools.

vLLM turns all three into the messages of a chat before its template sees them, so each writes what
a client of that API would send back. Pure. Host: coordinator.futures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from coordinator.calls import CallKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coordinator.stream_text import ToolCall

Message = dict[str, Any]


_NOTHING: Final = msgspec.Raw(b"{}")


class Speech(Protocol):
    """Each gives the messages or items to append."""

    def answer(self, content: str, reasoning: str, calls: Sequence[ToolCall]) -> list[Message]:
        """`reasoning` empty: the client does not send it back."""

    def user(self, text: str) -> list[Message]: ...

    def results(self, calls: Sequence[ToolCall], text: str) -> list[Message]: ...


class ChatSpeech:
    def answer(self, content: str, reasoning: str, calls: Sequence[ToolCall]) -> list[Message]:
        message: Message = {"role": "assistant", "content": content}
        if calls:
            message["content"] = content or None
            message["tool_calls"] = [_chat_call(call) for call in calls]
        if reasoning:
            message["reasoning"] = reasoning
        return [message]

    def user(self, text: str) -> list[Message]:
        return [{"role": "user", "content": text}]

    def results(self, calls: Sequence[ToolCall], text: str) -> list[Message]:
        return [{"role": "tool", "tool_call_id": call.id, "content": text} for call in calls]


def _chat_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


class MessagesSpeech:
    def answer(self, content: str, reasoning: str, calls: Sequence[ToolCall]) -> list[Message]:
        blocks: list[Message] = []
        if reasoning:
            blocks.append({"type": "thinking", "thinking": reasoning, "signature": ""})
        if content or not calls:
            blocks.append({"type": "text", "text": content})
        blocks += [
            # As written: vLLM parses it and writes it out again, from a client and from here alike.
            {"type": "tool_use", "id": call.id, "name": call.name, "input": _object(call)}
            for call in calls
        ]
        return [{"role": "assistant", "content": blocks}]

    def user(self, text: str) -> list[Message]:
        return [{"role": "user", "content": text}]

    def results(self, calls: Sequence[ToolCall], text: str) -> list[Message]:
        blocks = [
            {"type": "tool_result", "tool_use_id": call.id, "content": text} for call in calls
        ]
        return [{"role": "user", "content": blocks}]


def _object(call: ToolCall) -> msgspec.Raw:
    return msgspec.Raw(call.arguments.encode()) if call.arguments else _NOTHING


class ResponsesSpeech:
    def answer(self, content: str, reasoning: str, calls: Sequence[ToolCall]) -> list[Message]:
        items: list[Message] = []
        if reasoning:
            said = [{"type": "reasoning_text", "text": reasoning}]
            items.append({"type": "reasoning", "summary": [], "content": said})
        if content or not (calls or reasoning):
            text = [{"type": "output_text", "text": content}]
            items.append({"type": "message", "role": "assistant", "content": text})
        items += [
            {
                "type": "function_call",
                "call_id": call.id,
                "name": call.name,
                "arguments": call.arguments,
            }
            for call in calls
        ]
        return items

    def user(self, text: str) -> list[Message]:
        return [{"role": "user", "content": text}]

    def results(self, calls: Sequence[ToolCall], text: str) -> list[Message]:
        return [
            {"type": "function_call_output", "call_id": call.id, "output": text} for call in calls
        ]


SPEECH: Final[Mapping[CallKind, Speech]] = {
    CallKind.CHAT: ChatSpeech(),
    CallKind.RESPONSES: ResponsesSpeech(),
    CallKind.MESSAGES: MessagesSpeech(),
}
