"""Histories of the Responses and the Messages API: what is kept of them, and what has none."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from coordinator.calls import CallContext, CallKind
from coordinator.futures import future_bodies
from coordinator.history import History, NoHistory, ReasoningKept, history_of
from policy.vocabulary import RequestClass
from tests.coordinator.api_calls import a_question

RESPONSES, MESSAGES = CallKind.RESPONSES, CallKind.MESSAGES
ITEM = {"type": "message", "role": "assistant", "status": "completed", "content": []}
REASONING = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text"}]}
THINKING = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "so"}]


def history(kind: CallKind, prompt: Any, **fields: Any) -> History | NoHistory:
    body = {kind.prompt_field: prompt, **fields}
    call = CallContext(
        kind=kind,
        number=1,
        model="small",
        previous_model=None,
        request_class=RequestClass.ROUTED,
        stream=True,
        body_fields={name: msgspec.Raw(json.dumps(value).encode()) for name, value in body.items()},
        started_s=0.0,
    )
    return history_of(call)


@pytest.mark.parametrize(
    ("kind", "prompt", "fields", "reason"),
    [
        (MESSAGES, [a_question()], {"thinking": {"type": "disabled"}}, NoHistory.THINKING_OFF),
        (MESSAGES, [a_question(), {"role": "assistant", "content": "It"}], {}, NoHistory.CONTINUED),
        (RESPONSES, [a_question(), ITEM | {"status": "incomplete"}], {}, NoHistory.CONTINUED),
        (RESPONSES, [a_question()], {"truncation": "auto"}, NoHistory.TRUNCATED_PROMPT),
        (
            RESPONSES,
            [a_question()],
            {"previous_input_messages": [{"role": "user"}]},
            NoHistory.OTHER_MESSAGES,
        ),
        (RESPONSES, [], {}, NoHistory.UNREADABLE),
        (MESSAGES, [7], {}, NoHistory.UNREADABLE),
    ],
)
def test_a_call_whose_next_prompt_cannot_be_known_has_no_history(
    kind: CallKind, prompt: Any, fields: dict[str, Any], reason: NoHistory
) -> None:
    assert history(kind, prompt, **fields) is reason


@pytest.mark.parametrize(
    ("kind", "prompt", "kept"),
    [
        (MESSAGES, [a_question()], ReasoningKept.UNKNOWN),
        (MESSAGES, [{"role": "assistant", "content": THINKING}, a_question()], ReasoningKept.KEPT),
        (MESSAGES, [{"role": "assistant", "content": "so"}, a_question()], ReasoningKept.DROPPED),
        (RESPONSES, [REASONING, ITEM, a_question()], ReasoningKept.KEPT),
        (RESPONSES, [ITEM, a_question()], ReasoningKept.DROPPED),
    ],
)
def test_whether_a_client_sends_reasoning_back_shows_in_what_it_sent(
    kind: CallKind, prompt: Any, kept: ReasoningKept
) -> None:
    found = history(kind, prompt)
    assert isinstance(found, History)
    assert found.reasoning is kept


def test_what_decides_the_render_goes_along_in_the_names_of_the_api() -> None:
    found = history(
        MESSAGES,
        [a_question()],
        system="You help.",
        thinking={"type": "enabled", "budget_tokens": 2048},
        temperature=0.5,
    )
    assert isinstance(found, History)
    sent = json.loads(future_bodies(found, "large")[0][0])
    assert (sent["system"], sent["max_tokens"], sent["model"]) == ("You help.", 1, "large")
    assert not sent.keys() & {"temperature", "thinking"}, (
        "a budget of more than one token is refused"
    )


def test_a_plain_string_is_the_first_message_that_its_client_will_send() -> None:
    plain, listed = history(RESPONSES, "hello there"), history(RESPONSES, [a_question()])
    assert isinstance(plain, History)
    assert isinstance(listed, History)
    assert json.loads(plain.text) == json.loads(listed.text)
    sent = json.loads(future_bodies(plain, "large")[0][0])
    assert sent["input"][0] == a_question()
    assert sent["max_output_tokens"] == 1
    assert "max_tokens" not in sent
