"""A session's history as raw bytes, and the two futures that tell which of its tokens are stable.

The next real prompt is this history plus messages that nobody has written yet. Two made-up
continuations that differ from their first token on are rendered by the target's own front end; what
both renders share is what the next prompt will start with, whatever it says. Pure: no I/O.

Which continuations:
* answer finished, with tool calls: their results follow (the API demands it).
* answer finished, plain: a user message follows.
* answer unknown or still being written: its text goes on, then either a user message follows, or
  (where tools are declared) tool calls and their results. A template that strips reasoning or drops
  the text beside tool calls makes these two part early, which is the point.
A template that refuses such a continuation gets the next simpler one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from coordinator.calls import CallKind
from coordinator.stream_text import NO_ANSWER_YET, Answer, ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.calls import CallContext

Message = dict[str, Any]

_CHAT_FIELDS = (
    "tools",
    "tool_choice",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "add_special_tokens",
    "response_format",
    "mm_processor_kwargs",
    "media_io_kwargs",
)
_TEXT_FIELDS = ("add_special_tokens",)
"""What decides how the messages or the prompt become token ids; sampling fields do not."""

# One starts with a letter and one with white space: a token that could still grow at the cut
# ("foo" | "foobar", "\n" | "\n\n") differs in one of the two renders and is left out. A template
# that trims what follows still finds two different words.
_FUTURE_A = "Aside from that, continue."
_FUTURE_B = "\n\nBut then we go on."


class NoHistory(StrEnum):
    """Why a call cannot be shadowed at all (metric label)."""

    TOKEN_PROMPT = "token_prompt"  # another tokenizer cannot render ids
    BATCH_PROMPT = "batch_prompt"
    ECHO = "echo"  # the output repeats the prompt
    CONTINUED = "continued"  # the answer is glued to the last message
    TRUNCATED_PROMPT = "truncated_prompt"  # the next prompt starts elsewhere
    UNREADABLE = "unreadable"


_HOPELESS = {
    "echo": NoHistory.ECHO,
    "continue_final_message": NoHistory.CONTINUED,
    "truncate_prompt_tokens": NoHistory.TRUNCATED_PROMPT,
}
_UNSET = (b"", b"null", b"false")


class ReasoningKept(StrEnum):
    """Whether this client sends reasoning back, judged by the history that it sent."""

    KEPT = "kept"
    DROPPED = "dropped"
    UNKNOWN = "unknown"


class _Head(msgspec.Struct):
    role: str = ""
    reasoning: Any = None
    reasoning_content: Any = None


_HEADS = msgspec.json.Decoder(list[_Head])


@dataclass(frozen=True, slots=True)
class HistoryHead:
    """Names the client's part of a history without keeping its text."""

    length: int
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """h_k, or as much of it as there is while call k still runs."""

    kind: CallKind
    text: bytes
    """The client's `messages` array or `prompt` string, byte for byte."""
    fields: Mapping[str, bytes]
    """Raw values of the other fields that the render depends on."""
    reasoning: ReasoningKept = ReasoningKept.DROPPED
    answer: Answer = NO_ANSWER_YET

    @property
    def size_bytes(self) -> int:
        """Of everything that becomes tokens, roughly."""
        fields = sum(len(raw) for raw in self.fields.values())
        return len(self.text) + fields + len(self.answer.content) + len(self.answer.reasoning)

    @property
    def is_growing(self) -> bool:
        """A longer one of the same call will follow: small pieces can wait for it."""
        return not self.answer.complete and self.answer != NO_ANSWER_YET

    def answered(self, answer: Answer) -> History:
        return replace(self, answer=answer)

    def head(self) -> HistoryHead:
        """What a later history of the session starts with, unless it was rewritten."""
        length = len(self.text.rstrip()) - 1
        return HistoryHead(length, self._digest(length))

    def extends(self, earlier: HistoryHead) -> bool:
        """Whether the client's part of this history starts with that of an earlier one."""
        return len(self.text) > earlier.length and self._digest(earlier.length) == earlier.digest

    def _digest(self, length: int) -> bytes:
        digest = blake2b(self.text[:length], digest_size=16, person=self.kind.encode())
        for name in sorted(self.fields):
            digest.update(b"\0%b\0%b" % (name.encode(), self.fields[name]))
        return digest.digest()


def history_of(call: CallContext) -> History | NoHistory:
    """The history that a call arrived with."""
    for name, reason in _HOPELESS.items():
        if bytes(call.body_fields.get(name, b"")).strip() not in _UNSET:
            return reason
    names = _CHAT_FIELDS if call.kind is CallKind.CHAT else _TEXT_FIELDS
    fields = {name: bytes(call.body_fields[name]) for name in names if name in call.body_fields}
    if call.kind is CallKind.TEXT:
        return _text_history(call, fields)
    raw = call.messages_raw or b""
    try:
        heads = _HEADS.decode(raw)
    except msgspec.MsgspecError:
        return NoHistory.UNREADABLE
    if not heads:
        return NoHistory.UNREADABLE
    return History(kind=call.kind, text=raw, fields=fields, reasoning=_reasoning_kept(heads))


def _text_history(call: CallContext, fields: dict[str, bytes]) -> History | NoHistory:
    raw = (call.prompt_raw or b"").strip()
    if raw[:1] == b"[":
        inner = raw[1:].lstrip()[:1]
        return NoHistory.BATCH_PROMPT if inner == b'"' else NoHistory.TOKEN_PROMPT
    if raw[:1] != b'"':
        return NoHistory.UNREADABLE
    return History(kind=call.kind, text=raw, fields=fields)


def _reasoning_kept(heads: list[_Head]) -> ReasoningKept:
    answers = [head for head in heads if head.role == "assistant"]
    if not answers:
        return ReasoningKept.UNKNOWN
    kept = any(head.reasoning or head.reasoning_content for head in answers)
    return ReasoningKept.KEPT if kept else ReasoningKept.DROPPED


def future_bodies(history: History, model: str) -> list[tuple[bytes, bytes]]:
    """Pairs of render requests whose common prefix is stable; the later ones are fallbacks."""
    if history.kind is CallKind.TEXT:
        output = history.answer.content
        texts = tuple(_with_text(history, output + future) for future in (_FUTURE_A, _FUTURE_B))
        pairs = [texts]
    else:
        pairs = [
            (_with_messages(history, a), _with_messages(history, b)) for a, b in _futures(history)
        ]
    return [(_body(history, model, a), _body(history, model, b)) for a, b in pairs]


def _futures(history: History) -> list[tuple[list[Message], list[Message]]]:
    answer = history.answer
    # Unknown: one future keeps the reasoning and one drops it, so that both are prefixes.
    keep_a = history.reasoning is not ReasoningKept.DROPPED
    keep_b = history.reasoning is ReasoningKept.KEPT
    if not answer.complete:
        return _open_futures(answer, keep_a, keep_b, has_tools="tools" in history.fields)
    said_a, said_b = _said(answer, keep_a), _said(answer, keep_b)
    users = ([said_a, _user(_FUTURE_A)], [said_b, _user(_FUTURE_B)])
    if not answer.tool_calls:
        return [users]
    results_a = [_result(call, _FUTURE_A) for call in answer.tool_calls]
    results_b = [_result(call, _FUTURE_B) for call in answer.tool_calls]
    return [([said_a, *results_a], [said_b, *results_b]), users]


def _open_futures(
    answer: Answer, keep_a: bool, keep_b: bool, *, has_tools: bool
) -> list[tuple[list[Message], list[Message]]]:
    call_a = ToolCall("call_a", "a", '{"a": 1}')
    call_b = ToolCall("call_b", "b", '{"b": 2}')
    if answer.calling:
        pair = (_calling(answer, keep_a, call_a), _calling(answer, keep_b, call_b))
        return [pair, *_texts(answer, keep_a, keep_b)]
    if not has_tools:
        return _texts(answer, keep_a, keep_b)
    texts = _texts(answer, keep_a, keep_b)
    going_on = _going_on(answer, keep_b, _FUTURE_B)
    going_on["tool_calls"] = [_call(call_b)]
    return [(texts[0][0], [going_on, _result(call_b, _FUTURE_B)]), *texts]


def _texts(answer: Answer, keep_a: bool, keep_b: bool) -> list[tuple[list[Message], list[Message]]]:
    a = [_going_on(answer, keep_a, _FUTURE_A), _user(_FUTURE_A)]
    b = [_going_on(answer, keep_b, _FUTURE_B), _user(_FUTURE_B)]
    return [(a, b)]


def _going_on(answer: Answer, keep_reasoning: bool, future: str) -> Message:
    """The answer with more text: its reasoning grows until its content has begun."""
    message: Message = {"role": "assistant", "content": answer.content + future}
    if keep_reasoning and answer.reasoning:
        message["reasoning"] = answer.reasoning + ("" if answer.content else future)
    return message


def _calling(answer: Answer, keep_reasoning: bool, more: ToolCall) -> list[Message]:
    message = _said(answer, keep_reasoning)
    calls = [*answer.tool_calls, more]
    message["tool_calls"] = [_call(call) for call in calls]
    return [message, *(_result(call, _FUTURE_A) for call in calls)]


def _said(answer: Answer, keep_reasoning: bool) -> Message:
    message: Message = {"role": "assistant", "content": answer.content}
    if answer.tool_calls:
        message["content"] = answer.content or None
        message["tool_calls"] = [_call(call) for call in answer.tool_calls]
    if keep_reasoning and answer.reasoning:
        message["reasoning"] = answer.reasoning
    return message


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _result(call: ToolCall, text: str) -> Message:
    return {"role": "tool", "tool_call_id": call.id, "content": text}


def _with_messages(history: History, more: list[Message]) -> bytes:
    """Spliced, never re-serialised: key order and number forms of the client's part change ids."""
    return history.text.rstrip()[:-1] + b"," + msgspec.json.encode(more)[1:]


def _with_text(history: History, more: str) -> bytes:
    return history.text[:-1] + msgspec.json.encode(more)[1:]


def _body(history: History, model: str, text: bytes) -> bytes:
    name = b"messages" if history.kind is CallKind.CHAT else b"prompt"
    fields = b"".join(b',"%b":%b' % (key.encode(), raw) for key, raw in history.fields.items())
    head = b'{"model":%b,"max_tokens":1' % msgspec.json.encode(model)
    return b'%b%b,"%b":%b}' % (head, fields, name, text)
