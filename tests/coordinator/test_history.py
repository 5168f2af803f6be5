"""Which futures a history is rendered with, and that the client's bytes are never re-serialised."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from coordinator.calls import CallContext, CallKind
from coordinator.futures import future_bodies
from coordinator.history import History, ReasoningKept, history_of
from coordinator.stream_text import Answer, ToolCall
from policy.vocabulary import RequestClass

USER = {"role": "user", "content": "hi"}
CALL = ToolCall("c0", "ls", '{"a": 1}')


def a_history(**fields: object) -> History:
    raw = {name: msgspec.Raw(json.dumps(value).encode()) for name, value in fields.items()}
    call = CallContext(
        kind=CallKind.TEXT if "prompt" in fields else CallKind.CHAT,
        number=1,
        model="small",
        previous_model=None,
        request_class=RequestClass.ROUTED,
        stream=True,
        body_fields=raw,
        started_s=0.0,
    )
    history = history_of(call)
    assert isinstance(history, History)
    return history


def futures(history: History) -> list[tuple[list[Any], list[Any]]]:
    """What follows the client's messages, per choice."""
    known = len(json.loads(history.text))
    pairs = [tuple(map(json.loads, pair)) for pair in future_bodies(history, "large")]
    return [(a["messages"][known:], b["messages"][known:]) for a, b in pairs]


def roles(history: History) -> list[tuple[str, str]]:
    def word(messages: list[Any]) -> str:
        return " ".join(m["role"] + ("+calls" if "tool_calls" in m else "") for m in messages)

    return [(word(a), word(b)) for a, b in futures(history)]


@pytest.mark.parametrize(
    ("tools", "answer", "expected"),
    [
        (False, Answer(), [("assistant user", "assistant user")]),
        (
            True,
            Answer(content="so"),
            [("assistant user", "assistant+calls tool"), ("assistant user", "assistant user")],
        ),
        (
            True,
            Answer(content="so", calling=True),
            [
                ("assistant+calls tool", "assistant+calls tool"),
                ("assistant user", "assistant user"),
            ],
        ),
        (True, Answer(content="so", complete=True), [("assistant user", "assistant user")]),
        (
            False,
            Answer(content="so", tool_calls=(CALL, CALL), calling=True, complete=True),
            [
                ("assistant+calls tool tool", "assistant+calls tool tool"),
                ("assistant+calls user", "assistant+calls user"),
            ],
        ),
    ],
    ids=["arrived", "streaming_with_tools", "calling", "ended_plain", "ended_with_calls"],
)
def test_which_futures_follow(tools: bool, answer: Answer, expected: list[tuple[str, str]]) -> None:
    fields = {"tools": [{"type": "function"}]} if tools else {}
    assert roles(a_history(messages=[USER], **fields).answered(answer)) == expected


def test_a_running_answer_goes_on_and_a_finished_one_does_not() -> None:
    history = a_history(messages=[USER])
    ((a, b),) = futures(history.answered(Answer(content="so far")))
    assert a[0]["content"] != b[0]["content"]
    assert a[0]["content"].startswith("so far")
    assert b[0]["content"].startswith("so far")
    ((a, b),) = futures(history.answered(Answer(content="so far", complete=True)))
    assert a[0] == b[0] == {"role": "assistant", "content": "so far"}
    assert a[1]["content"] != b[1]["content"]


def test_finished_calls_are_sent_as_the_client_would_send_them() -> None:
    answer = Answer(tool_calls=(CALL,), calling=True, complete=True)
    (a, b), _ = futures(a_history(messages=[USER]).answered(answer))
    function = {"name": "ls", "arguments": '{"a": 1}'}
    assert a[0]["tool_calls"] == [{"id": "c0", "type": "function", "function": function}]
    assert a[0]["content"] is None
    assert a[1]["tool_call_id"] == b[1]["tool_call_id"] == "c0"
    assert a[1]["content"] != b[1]["content"]


@pytest.mark.parametrize(
    ("earlier", "kept", "expected"),
    [
        ([], ReasoningKept.UNKNOWN, (True, False)),
        ([{"role": "assistant", "content": "x"}, USER], ReasoningKept.DROPPED, (False, False)),
        (
            [{"role": "assistant", "content": "x", "reasoning": "r"}, USER],
            ReasoningKept.KEPT,
            (True, True),
        ),
        (
            [{"role": "assistant", "content": "x", "reasoning_content": "r"}, USER],
            ReasoningKept.KEPT,
            (True, True),
        ),
    ],
    ids=["first_answer", "dropped", "kept", "kept_old_name"],
)
@pytest.mark.parametrize("complete", [True, False])
def test_reasoning_is_sent_back_as_this_client_does_it(
    earlier: list[Any], kept: ReasoningKept, expected: tuple[bool, bool], complete: bool
) -> None:
    history = a_history(messages=[USER, *earlier])
    assert history.reasoning is kept
    answer = Answer(content="so", reasoning="because", complete=complete)
    ((a, b),) = futures(history.answered(answer))
    assert ("reasoning" in a[0], "reasoning" in b[0]) == expected


def test_the_clients_bytes_are_spliced_and_only_what_decides_the_render_is_passed_on() -> None:
    raw = b'[ {"content":"h\\u00e9", "role":"user", "n": 1e0} ]  '
    history = History(kind=CallKind.CHAT, text=raw, fields={"tools": b'[{"z":1,"a":2}]'})
    for body in future_bodies(history, "large")[0]:
        assert raw.rstrip()[:-1] in body
        assert b'"tools":[{"z":1,"a":2}]' in body
    fields = {"temperature": 0, "max_tokens": 9, "stop": ["x"], "chat_template_kwargs": {"t": 1}}
    history = a_history(messages=[USER], **fields)
    sent = json.loads(future_bodies(history, "large")[0][0])
    assert sorted(sent) == ["chat_template_kwargs", "max_tokens", "messages", "model"]
    assert (sent["model"], sent["max_tokens"]) == ("large", 1)


def test_a_text_history_goes_on_as_text() -> None:
    history = a_history(prompt='say "é"', add_special_tokens=False)
    ((a, b),) = future_bodies(history.answered(Answer(content=" yes\n")), "large")
    one, other = json.loads(a), json.loads(b)
    assert one["prompt"].startswith('say "é" yes\n')
    assert other["prompt"].startswith('say "é" yes\n')
    assert one["prompt"] != other["prompt"]
    assert one["add_special_tokens"] is False


@pytest.mark.parametrize(
    ("earlier", "later", "expected"),
    [
        ({"messages": [USER]}, {"messages": [USER, USER]}, True),
        ({"messages": [USER]}, {"messages": [USER]}, True),
        ({"messages": [USER, USER]}, {"messages": [USER]}, False),
        ({"messages": [USER]}, {"messages": [{**USER, "content": "other"}, USER]}, False),
        ({"messages": [USER]}, {"messages": [USER, USER], "tools": []}, False),
        ({"prompt": "ab"}, {"prompt": "abc"}, True),
        ({"prompt": "abd"}, {"prompt": "abc"}, False),
    ],
    ids=["longer", "same", "shorter", "rewritten", "other_tools", "text", "other_text"],
)
def test_whether_a_history_extends_an_earlier_one(
    earlier: dict[str, Any], later: dict[str, Any], expected: bool
) -> None:
    assert a_history(**later).extends(a_history(**earlier).head()) is expected


def test_only_a_part_of_an_answer_is_growing() -> None:
    history = a_history(messages=[USER])
    assert not history.is_growing
    assert history.answered(Answer(content="x")).is_growing
    assert not history.answered(Answer(content="x", complete=True)).is_growing
