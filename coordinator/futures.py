"""The two futures of a history that tell which of its tokens are stable.

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

from typing import TYPE_CHECKING

import msgspec

from coordinator.calls import CallKind
from coordinator.history import ReasoningKept
from coordinator.speech import SPEECH
from coordinator.stream_text import ToolCall

if TYPE_CHECKING:
    from coordinator.history import History
    from coordinator.speech import Message, Speech
    from coordinator.stream_text import Answer

# One starts with a letter and one with white space: a token that could still grow at the cut
# ("foo" | "foobar", "\n" | "\n\n") differs in one of the two renders and is left out. A template
# that trims what follows still finds two different words.
_FUTURE_A = "Aside from that, continue."
_FUTURE_B = "\n\nBut then we go on."

Futures = list[tuple[list["Message"], list["Message"]]]


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


def _futures(history: History) -> Futures:
    answer, speech = history.answer, SPEECH[history.kind]
    # Unknown: one future keeps the reasoning and one drops it, so that both are prefixes.
    keep_a = history.reasoning is not ReasoningKept.DROPPED
    keep_b = history.reasoning is ReasoningKept.KEPT
    if not answer.complete:
        return _open_futures(speech, answer, keep_a, keep_b, has_tools="tools" in history.fields)
    said_a, said_b = _said(speech, answer, keep_a), _said(speech, answer, keep_b)
    users = (said_a + speech.user(_FUTURE_A), said_b + speech.user(_FUTURE_B))
    if not answer.tool_calls:
        return [users]
    results_a = speech.results(answer.tool_calls, _FUTURE_A)
    results_b = speech.results(answer.tool_calls, _FUTURE_B)
    return [(said_a + results_a, said_b + results_b), users]


def _open_futures(
    speech: Speech, answer: Answer, keep_a: bool, keep_b: bool, *, has_tools: bool
) -> Futures:
    call_a = ToolCall("call_a", "a", '{"a": 1}')
    call_b = ToolCall("call_b", "b", '{"b": 2}')
    a = _going_on(speech, answer, keep_a, _FUTURE_A) + speech.user(_FUTURE_A)
    b = _going_on(speech, answer, keep_b, _FUTURE_B) + speech.user(_FUTURE_B)
    if answer.calling:
        calling_a = _calling(speech, answer, keep_a, call_a)
        return [(calling_a, _calling(speech, answer, keep_b, call_b)), (a, b)]
    if not has_tools:
        return [(a, b)]
    going_on = _going_on(speech, answer, keep_b, _FUTURE_B, (call_b,))
    return [(a, going_on + speech.results((call_b,), _FUTURE_B)), (a, b)]


def _going_on(
    speech: Speech,
    answer: Answer,
    keep_reasoning: bool,
    future: str,
    calls: tuple[ToolCall, ...] = (),
) -> list[Message]:
    """The answer with more text: its reasoning grows until its content has begun."""
    reasoning = answer.reasoning if keep_reasoning else ""
    if reasoning and not answer.content:
        reasoning += future
    return speech.answer(answer.content + future, reasoning, calls)


def _calling(speech: Speech, answer: Answer, keep_reasoning: bool, more: ToolCall) -> list[Message]:
    calls = (*answer.tool_calls, more)
    reasoning = answer.reasoning if keep_reasoning else ""
    return speech.answer(answer.content, reasoning, calls) + speech.results(calls, _FUTURE_A)


def _said(speech: Speech, answer: Answer, keep_reasoning: bool) -> list[Message]:
    reasoning = answer.reasoning if keep_reasoning else ""
    return speech.answer(answer.content, reasoning, answer.tool_calls)


def _with_messages(history: History, more: list[Message]) -> bytes:
    """Spliced, never re-serialised: key order and number forms of the client's part change ids."""
    return history.text.rstrip()[:-1] + b"," + msgspec.json.encode(more)[1:]


def _with_text(history: History, more: str) -> bytes:
    return history.text[:-1] + msgspec.json.encode(more)[1:]


def _body(history: History, model: str, text: bytes) -> bytes:
    kind = history.kind
    fields = b"".join(b',"%b":%b' % (key.encode(), raw) for key, raw in history.fields.items())
    limit = kind.limit_field.encode()
    head = b'{"model":%b,"%b":1' % (msgspec.json.encode(model), limit)
    return b'%b%b,"%b":%b}' % (head, fields, kind.prompt_field.encode(), text)
