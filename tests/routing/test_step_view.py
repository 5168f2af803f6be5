"""What a router sees of a prompt."""

from __future__ import annotations

import json
from typing import Any

import pytest

from routing.step_view import PIECE_CHARS, TAIL_PIECES, StepView, step_view


def seen(messages: Any) -> StepView:
    return step_view(json.dumps(messages).encode())


def message(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


AGENT = [
    message("system", "be brief"),
    message("user", "fix it"),
    message("assistant", "look\nfirst"),
    message("tool", "a.py b.py"),
    message("assistant", None, tool_calls=[{"function": {"name": "run", "arguments": '{"x": 1}'}}]),
    message("tool", "Traceback: no"),
    message("user", [{"type": "text", "text": "again"}, {"type": "image_url", "image_url": "x"}]),
]


def test_an_agents_step_is_its_last_action_and_what_came_back() -> None:
    view = seen(AGENT)
    assert view.texts.action == ('run {"x": 1}',)
    assert view.texts.observation == ("Traceback: no\nagain",)
    assert view.texts.history == ("look first",)
    assert view.texts.tail[:2] == ("be brief", "fix it")
    assert view.numbers.action_calls_tool == 1.0
    assert view.numbers.observation_fails == 1.0
    assert view.numbers.log_steps == pytest.approx(1.0986, abs=1e-4)


def test_a_first_call_has_no_action_yet() -> None:
    view = seen(AGENT[:2])
    assert view.texts.action == view.texts.observation == view.texts.history == ()
    assert view.numbers.log_steps == view.numbers.observation_fails == 0.0


def test_only_the_last_4k_tokens_are_read() -> None:
    view = seen([message("user", str(at % 10) * PIECE_CHARS) for at in range(40)])
    assert len(view.texts.tail) == TAIL_PIECES
    assert view.texts.tail[-1] == "9" * PIECE_CHARS
    assert view.texts.tail[0] == "4" * PIECE_CHARS


def test_pieces_of_old_messages_stay_the_same_as_the_prompt_grows() -> None:
    long = message("user", "".join(str(at) for at in range(900)))
    before, after = seen([long]), seen([long, message("assistant", "ok"), message("user", "go")])
    assert after.texts.tail[: len(before.texts.tail)] == before.texts.tail


def test_a_completions_prompt_is_one_message() -> None:
    assert seen("hello") == seen([message("user", "hello")])


@pytest.mark.parametrize(
    "prompt",
    [
        b"oops",
        b"7",
        b"null",
        b"[1, 2, 3]",
        b"[[1, 2], null]",
        b'[{"content": 7, "tool_calls": [7, {"function": 7}, {}]}]',
        b'[{"role": "assistant", "content": [7, {"text": 7}], "tool_calls": {}}]',
        b'"\\ud800"',
    ],
)
def test_nonsense_is_an_empty_prompt_and_never_an_error(prompt: bytes) -> None:
    step_view(prompt)
