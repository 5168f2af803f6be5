"""Bytes of an answer in any split, and the message that they spell."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.calls import CallKind
from coordinator.stream_text import Answer, AnswerText, ToolCall


def event(delta: dict[str, Any], **choice: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": delta} | choice]}).encode()


def a_call(index: int, **function: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "function": function}]}


STREAM = b"\n\n".join(
    [
        event({"role": "assistant", "content": ""}),
        event({"reasoning": "so "}),
        event({"reasoning_content": "then"}),
        event({"content": "Grüße "}),
        event({"content": "\n\ud83d\ude00"}),
        event({"content": "not mine"}, index=1),
        event({"tool_calls": [{"index": 0, "id": "c0", "function": {"name": "ls"}}]}),
        event(a_call(0, arguments='{"a":')),
        event(a_call(0, arguments=" 1}")),
        event({"tool_calls": [{"index": 1, "id": "c1", "function": {"name": "cat"}}]}),
        event(a_call(1, arguments="{}")),
        event({}, finish_reason="tool_calls"),
        b'data: {"choices": [], "usage": {"prompt_tokens": 3}}',
        b": a comment",
        b"event: ping",
        b"data: [DONE]",
        b"",
    ]
)
WHOLE = Answer(
    content="Grüße \n😀",
    reasoning="so then",
    tool_calls=(ToolCall("c0", "ls", '{"a": 1}'), ToolCall("c1", "cat", "{}")),
    calling=True,
    complete=True,
)


def fed(*parts: bytes) -> AnswerText:
    text = AnswerText(CallKind.CHAT)
    for part in parts:
        text.feed(part)
    return text


@settings(deadline=None)
@given(st.lists(st.integers(0, len(STREAM)), max_size=12), st.booleans())
def test_a_stream_spells_its_message_however_it_is_cut(cuts: list[int], crlf: bool) -> None:
    stream = STREAM.replace(b"\n", b"\r\n") if crlf else STREAM
    bounds = [0, *sorted(cuts), len(stream)]
    text = fed(*(stream[a:b] for a, b in pairwise(bounds)))
    assert text.answer(complete=True) == WHOLE
    assert text.readable


def test_a_running_answer_leaves_out_the_call_that_is_still_written() -> None:
    text = fed(STREAM[: STREAM.index(b'"arguments": "{}"')])
    answer = text.answer(complete=False)
    assert answer.tool_calls == (ToolCall("c0", "ls", '{"a": 1}'),)
    assert answer.calling
    assert not answer.complete


def test_a_whole_json_body_spells_the_same_message() -> None:
    calls = [
        {"id": "c0", "type": "function", "function": {"name": "ls", "arguments": '{"a": 1}'}},
        {"id": "c1", "type": "function", "function": {"name": "cat", "arguments": "{}"}},
    ]
    message = {"content": "Grüße \n😀", "reasoning": "so then", "tool_calls": calls}
    body = json.dumps({"choices": [{"index": 0, "message": message}]}).encode()
    text = fed(b"  ", body[:40], body[40:])
    assert text.answer(complete=False) == Answer()
    assert text.answer(complete=True) == WHOLE
    assert text.answer(complete=True) == WHOLE  # asking twice adds nothing


@pytest.mark.parametrize(
    "body",
    [
        b'data: {"choices": [{"index": 0, "text": "ab"}]}\n\ndata: {"choices": [{"text": "c"}]}',
        b'{"choices": [{"index": 0, "text": "abc"}]}',
    ],
    ids=["stream", "body"],
)
def test_a_completion_is_text(body: bytes) -> None:
    assert fed(body).answer(complete=True) == Answer(content="abc", complete=True)


def test_text_bytes_count_what_was_said() -> None:
    text = fed(event({"content": "äb"}) + b"\n\n")
    assert text.text_bytes == 3


@pytest.mark.parametrize(
    "broken",
    [b"data: {oops}\n", b'data: {"choices": 3}\n', b'data: {"choices": [{"text": 7}]}\n'],
    ids=["not_json", "wrong_shape", "wrong_type"],
)
def test_what_cannot_be_read_is_remembered(broken: bytes) -> None:
    text = fed(broken, event({"content": "x"}) + b"\n")
    assert not text.readable


@pytest.mark.parametrize(
    "harmless",
    [b"", b"\n\n", b'data: {"error": {"message": "no"}}\n\n', b"data: [DONE]\n\n"],
    ids=["nothing", "blank", "error_frame", "done"],
)
def test_what_says_nothing_spells_nothing(harmless: bytes) -> None:
    text = fed(harmless)
    assert text.answer(complete=True) == Answer(complete=True)
    assert text.readable


def named(*events: dict[str, Any]) -> bytes:
    return b"".join(
        b"event: %b\ndata: %b\n\n" % (event["type"].encode(), json.dumps(event).encode())
        for event in events
    )


def block(index: int, **made: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": made}


def more(index: int, **delta: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def item(index: int, **made: Any) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": index, "item": made}


def piece(of: str, index: int, delta: str) -> dict[str, Any]:
    return {"type": f"response.{of}.delta", "output_index": index, "delta": delta}


NAMED_STREAMS = {
    CallKind.MESSAGES: named(
        {"type": "message_start", "message": {"content": []}},
        block(0, type="thinking", thinking=""),
        more(0, type="thinking_delta", thinking="so then"),
        more(0, type="signature_delta", signature="f00"),
        {"type": "content_block_stop", "index": 0},
        block(1, type="text", text=""),
        more(1, type="text_delta", text="Grüße "),
        more(1, type="text_delta", text="\n😀"),
        block(2, type="tool_use", id="c0", name="ls", input={}),
        more(2, type="input_json_delta", partial_json='{"a":'),
        more(2, type="input_json_delta", partial_json=" 1}"),
        block(3, type="tool_use", id="c1", name="cat", input={}),
        more(3, type="input_json_delta", partial_json="{}"),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        {"type": "ping"},
        {"type": "message_stop"},
    ),
    CallKind.RESPONSES: named(
        {"type": "response.created", "response": {"output": [], "tools": [{"type": "x"}]}},
        item(0, type="reasoning", id="r", summary=[], content=[]),
        piece("reasoning_text", 0, "so then"),
        item(1, type="message", id="m", content=[]),
        piece("output_text", 1, "Grüße "),
        piece("output_text", 1, "\n😀"),
        item(2, type="function_call", call_id="c0", name="ls", arguments="", namespace=None),
        piece("function_call_arguments", 2, '{"a":'),
        piece("function_call_arguments", 2, " 1}"),
        item(3, type="function_call", call_id="c1", name="cat", arguments=""),
        piece("function_call_arguments", 3, "{}"),
        {"type": "response.completed", "response": {"output": [{"type": "message"}]}},
    ),
}


@pytest.mark.parametrize("kind", NAMED_STREAMS)
@settings(deadline=None)
@given(data=st.data())
def test_named_events_spell_the_same_message_however_they_are_cut(
    kind: CallKind, data: st.DataObject
) -> None:
    stream = NAMED_STREAMS[kind]
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    text = AnswerText(kind)
    for a, b in pairwise([0, *sorted(cuts), len(stream)]):
        text.feed(stream[a:b])
    assert text.answer(complete=True) == WHOLE
    assert text.readable


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        (CallKind.MESSAGES, block(4, type="text", text="more")),
        (CallKind.MESSAGES, block(4, type="redacted_thinking", data="x")),
        (CallKind.RESPONSES, item(4, type="message", content=[])),
        (CallKind.RESPONSES, item(4, type="reasoning", content=[])),
        (CallKind.RESPONSES, item(4, type="web_search_call")),
        (CallKind.RESPONSES, item(4, type="function_call", call_id="c", name="f", namespace="n")),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value.get("type")),
)
def test_what_cannot_be_put_back_together_is_not_guessed(
    kind: CallKind, event: dict[str, Any]
) -> None:
    text = AnswerText(kind)
    text.feed(NAMED_STREAMS[kind] + named(event))
    assert not text.readable
