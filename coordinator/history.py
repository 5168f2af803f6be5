"""A session's history as raw bytes: what a call arrived with, and what was answered since.

It stays in the words of the API that the call came through, because the target renders it through
the same one (coordinator.futures). Pure: no I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from coordinator.calls import CallKind
from coordinator.session_identity import as_list
from coordinator.stream_text import NO_ANSWER_YET, Answer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.calls import CallContext

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
_FIELDS = {
    CallKind.CHAT: _CHAT_FIELDS,
    CallKind.TEXT: ("add_special_tokens",),
    CallKind.RESPONSES: (
        "instructions",
        "tools",
        "tool_choice",
        "reasoning",
        "text",
        "chat_template_kwargs",
        "mm_processor_kwargs",
        "media_io_kwargs",
    ),
    CallKind.MESSAGES: ("system", "tools", "tool_choice", "output_config", "chat_template_kwargs"),
}
"""What decides how the messages or the prompt become token ids; sampling fields do not."""


class NoHistory(StrEnum):
    """Why a call cannot be shadowed at all (metric label)."""

    TOKEN_PROMPT = "token_prompt"  # another tokenizer cannot render ids
    BATCH_PROMPT = "batch_prompt"
    ECHO = "echo"  # the output repeats the prompt
    CONTINUED = "continued"  # the answer is glued to the last message
    TRUNCATED_PROMPT = "truncated_prompt"  # the next prompt starts elsewhere
    THINKING_OFF = "thinking_off"  # vLLM renders that otherwise than it serves it
    OTHER_MESSAGES = "other_messages"  # of which the next call may send others
    UNREADABLE = "unreadable"


_HOPELESS = {
    "echo": NoHistory.ECHO,
    "continue_final_message": NoHistory.CONTINUED,
    "truncate_prompt_tokens": NoHistory.TRUNCATED_PROMPT,
    "truncation": NoHistory.TRUNCATED_PROMPT,
    "previous_input_messages": NoHistory.OTHER_MESSAGES,
}
_UNSET = (b"", b"null", b"false", b'"disabled"')


class ReasoningKept(StrEnum):
    """Whether this client sends reasoning back, judged by the history that it sent."""

    KEPT = "kept"
    DROPPED = "dropped"
    UNKNOWN = "unknown"


class _Block(msgspec.Struct):
    type: str = ""


class _Head(msgspec.Struct):
    """Of a message, or of an item of the Responses API."""

    role: str = ""
    type: str = ""
    status: str = ""
    reasoning: Any = None
    reasoning_content: Any = None
    content: str | list[_Block] | None = None

    @property
    def has_reasoning(self) -> bool:
        blocks = () if self.content is None or isinstance(self.content, str) else self.content
        return (
            bool(self.reasoning or self.reasoning_content)
            or self.type == "reasoning"
            or any(block.type == "thinking" for block in blocks)
        )

    @property
    def is_answer(self) -> bool:
        return self.role == "assistant" or self.type in ("reasoning", "function_call")


class _Thinking(msgspec.Struct):
    type: str = ""


_HEADS = msgspec.json.Decoder(list[_Head])
_THINKING = msgspec.json.Decoder(_Thinking | None)


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
    """The client's list of messages or items, or `prompt` string, byte for byte."""
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
    names = _FIELDS[call.kind]
    fields = {name: bytes(call.body_fields[name]) for name in names if name in call.body_fields}
    is_text = call.kind is CallKind.TEXT
    return _text_history(call, fields) if is_text else _chat_history(call, fields)


def _chat_history(call: CallContext, fields: dict[str, bytes]) -> History | NoHistory:
    raw = call.prompt_raw
    if call.kind is CallKind.RESPONSES:
        raw = as_list(raw)
    try:
        heads = _HEADS.decode(raw)
        thinking = _THINKING.decode(call.body_fields.get("thinking", b"null"))
    except msgspec.MsgspecError:
        return NoHistory.UNREADABLE
    if not heads:
        return NoHistory.UNREADABLE
    if call.kind is CallKind.MESSAGES and thinking is not None and thinking.type == "disabled":
        return NoHistory.THINKING_OFF
    if _is_continued(call.kind, heads[-1]):
        return NoHistory.CONTINUED
    return History(kind=call.kind, text=raw, fields=fields, reasoning=_reasoning_kept(heads))


def _is_continued(kind: CallKind, last: _Head) -> bool:
    """Whether the client has begun the answer itself."""
    if kind is CallKind.RESPONSES:
        return last.status in ("in_progress", "incomplete")
    return kind is CallKind.MESSAGES and last.role == "assistant"


def _text_history(call: CallContext, fields: dict[str, bytes]) -> History | NoHistory:
    raw = call.prompt_raw.strip()
    if raw[:1] == b"[":
        inner = raw[1:].lstrip()[:1]
        return NoHistory.BATCH_PROMPT if inner == b'"' else NoHistory.TOKEN_PROMPT
    if raw[:1] != b'"':
        return NoHistory.UNREADABLE
    return History(kind=call.kind, text=raw, fields=fields)


def _reasoning_kept(heads: list[_Head]) -> ReasoningKept:
    answers = [head for head in heads if head.is_answer]
    if not answers:
        return ReasoningKept.UNKNOWN
    kept = any(head.has_reasoning for head in answers)
    return ReasoningKept.KEPT if kept else ReasoningKept.DROPPED
