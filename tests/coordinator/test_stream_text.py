"""Bytes of an answer in any split, and the message that they spell."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    text = AnswerText()
    for part in parts:
        text.feed(part)
    return text


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
