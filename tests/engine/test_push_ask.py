"""An ask for a push, and its answer, as they travel."""

from __future__ import annotations

from typing import Any

import pytest

from engine.marks import MarkInvalid
from engine.push_ask import (
    ASK_KEY,
    AnswerUnreadable,
    PushAnswer,
    PushAsk,
    answer_text,
    ask_xargs,
    read_answer,
    read_ask,
)


@pytest.mark.parametrize(
    "ask",
    [
        PushAsk(peer="10.0.0.1:5600", normal_out=2),
        PushAsk(peer="", gives_back=True),
    ],
)
def test_an_ask_is_read_as_it_was_written(ask: PushAsk) -> None:
    assert read_ask(ask_xargs(ask)) == ask


@pytest.mark.parametrize("xargs", [None, {}, {"shadowprefill_class": "shadow"}])
def test_a_push_itself_is_no_ask(xargs: dict[str, Any] | None) -> None:
    assert read_ask(xargs) is None


@pytest.mark.parametrize(
    "message",
    [7, "", "[]", "{}", '{"peer": 7}', '{"peer": "p", "normal_out": -1}', '{"peer":"p","x":1}'],
)
def test_an_ask_that_cannot_be_read_is_refused_by_name(message: Any) -> None:
    with pytest.raises(MarkInvalid, match=ASK_KEY):
        read_ask({ASK_KEY: message})


def test_an_answer_is_read_as_it_was_written() -> None:
    answer = PushAnswer(reason="granted", tokens=4096, held_tokens=64)
    assert read_answer(answer_text(answer)) == answer


@pytest.mark.parametrize("text", [None, 2, "no_handoff", "push_answer: {}", 'push_answer: {"x":'])
def test_another_engines_word_is_no_answer(text: object) -> None:
    with pytest.raises(AnswerUnreadable, match="was answered with"):
        read_answer(text)
