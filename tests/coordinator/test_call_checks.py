"""What a body must say so that no engine refuses it after another one has worked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coordinator.call_body import read_body
from coordinator.calls import CallKind
from coordinator.errors import BodyInvalid
from tests.coordinator.api_calls import a_body, a_question

RESPONSES, MESSAGES = CallKind.RESPONSES, CallKind.MESSAGES


def read(kind: CallKind, **fields: Any) -> Any:
    return read_body(kind, json.dumps(a_body(kind, [a_question()]) | fields).encode())


@pytest.mark.parametrize(
    ("kind", "fields", "word"),
    [
        (RESPONSES, {"previous_response_id": "resp_1"}, "send the whole input instead"),
        (RESPONSES, {"background": True}, "ask for a stream instead"),
        (RESPONSES, {"max_output_tokens": 0}, "max_output_tokens must be an integer >= 1"),
        (RESPONSES, {"input": {"a": 1}}, "input is required"),
        (MESSAGES, {"max_tokens": None}, "max_tokens is required"),
        (MESSAGES, {"max_tokens": True}, "max_tokens must be an integer >= 1"),
        (MESSAGES, {"messages": "hello"}, "messages is required and must be a list"),
        (
            MESSAGES,
            {"max_tokens": 1024, "thinking": {"type": "enabled", "budget_tokens": 1024}},
            "thinking.budget_tokens must be < 1024",
        ),
        (MESSAGES, {"thinking": 7}, "thinking"),
        (MESSAGES, {"thinking": {"budget_tokens": "many"}}, "thinking"),
    ],
)
def test_a_field_that_only_d_would_refuse_is_refused_first(
    kind: CallKind, fields: dict[str, Any], word: str
) -> None:
    with pytest.raises(BodyInvalid, match=word):
        read(kind, **fields)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (RESPONSES, {"previous_response_id": None, "background": False, "store": True}),
        (RESPONSES, {"input": "hello", "max_output_tokens": None}),
        (RESPONSES, {"stream": True, "stream_options": {"include_obfuscation": False}}),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}),
        (MESSAGES, {"thinking": {"type": "adaptive"}, "system": [{"type": "text", "text": "x"}]}),
    ],
)
def test_a_sound_body_passes(kind: CallKind, fields: dict[str, Any]) -> None:
    assert not read(kind, **fields).needs_one_engine


@pytest.mark.parametrize(
    ("tools", "needs"),
    [
        ([{"type": "function", "name": "f"}], False),
        ([{"type": "custom", "name": "f"}, {"type": "namespace", "name": "n"}], False),
        ([{"type": "function", "name": "f"}, {"type": "code_interpreter"}], True),
        ([{"type": "mcp", "server_label": "x"}], True),
        ("none at all", True),
        (None, False),
    ],
)
def test_tools_that_an_engine_runs_itself_need_one_engine(tools: Any, needs: bool) -> None:
    assert read(RESPONSES, tools=tools).needs_one_engine is needs
