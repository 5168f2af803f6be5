"""An error in the words of the API that the client speaks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coordinator.calls import CallKind
from coordinator.door_errors import KeyUnknown, RateExceeded
from coordinator.error_shapes import error_body, error_event
from coordinator.errors import (
    AnswerTimeout,
    BodyInvalid,
    BodyTooLarge,
    CallError,
    EngineRejected,
    ModelUnknown,
    NoInstance,
    StreamBroken,
)

MESSAGES = CallKind.MESSAGES


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BodyInvalid("no"), "invalid_request_error"),
        (KeyUnknown(), "authentication_error"),
        (ModelUnknown("x", ["a"]), "not_found_error"),
        (BodyTooLarge(9), "request_too_large"),
        (RateExceeded("k", 1.0, 2.0), "rate_limit_error"),
        (NoInstance("m", "prefill", 1), "overloaded_error"),
        (AnswerTimeout("i", 1.0), "timeout_error"),
        (StreamBroken("i", "is gone"), "api_error"),
        (CallError("internal error"), "api_error"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, CallError) else "",
)
def test_anthropics_clients_find_a_type_that_they_know(error: CallError, kind: str) -> None:
    told = {"type": "error", "error": {"type": kind, "message": str(error)}}
    assert json.loads(error_body(MESSAGES, error)) == told
    for other in (CallKind.CHAT, CallKind.TEXT, CallKind.RESPONSES):
        assert error_body(other, error) == error.body()


def rejected(answer: Any) -> EngineRejected:
    return EngineRejected("small-1", 400, json.dumps(answer).encode())


OWN = {"type": "error", "error": {"type": "BadRequestError", "message": "too long"}}
OPENAI = {"error": {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}}


@pytest.mark.parametrize(
    ("answer", "message"),
    [(OWN, "too long"), (OPENAI, "too long"), ({"detail": "Not Found"}, "small-1"), ([1], "400")],
    ids=["its_own", "of_openai", "no_error", "no_object"],
)
def test_an_engines_words_are_kept_whatever_their_shape(answer: Any, message: str) -> None:
    told = json.loads(error_body(MESSAGES, rejected(answer)))
    assert told["type"] == "error"
    assert message in told["error"]["message"]
    in_openais = json.loads(error_body(CallKind.CHAT, rejected(answer)))
    assert message in in_openais["error"]["message"]


def test_each_stream_reports_an_error_as_an_event_of_its_own() -> None:
    error = StreamBroken("small-d", "is gone")
    assert error_event(CallKind.CHAT, error, 3) == b"data: " + error.body() + b"\n\n"
    for kind in (CallKind.RESPONSES, MESSAGES):
        name, _, data = error_event(kind, error, 3).partition(b"\ndata: ")
        assert name == b"event: error"
        assert json.loads(data)["type"] == "error"
    numbered = json.loads(error_event(CallKind.RESPONSES, error, 3).partition(b"data: ")[2])
    assert (numbered["sequence_number"], numbered["code"]) == (3, "stream_broken")
