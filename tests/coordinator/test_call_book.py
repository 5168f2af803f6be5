"""What is written down about calls, and what estimates are made of it."""

from __future__ import annotations

import json

import pytest

from coordinator.call_body import ClientBody, read_body
from coordinator.call_book import CallBook
from coordinator.calls import CallKind
from coordinator.metrics import Metrics, Outcome
from coordinator.sessions import Session
from coordinator.slo import slo_wish
from coordinator.sse import Usage
from tests.coordinator.call_rig import a_chat, a_cluster


def a_book() -> CallBook:
    config = a_cluster({"small-1": ("small", "colocated", "http://127.0.0.1:9")})
    return CallBook(config.models, Metrics(), lambda: 0.0)


def a_body(text: str) -> ClientBody:
    return read_body(CallKind.CHAT, json.dumps(a_chat(text)).encode())


@pytest.mark.parametrize("prompt_tokens", [64, 1000], ids=["few_tokens", "many_tokens"])
def test_calls_that_run_at_once_drive_no_estimate_to_infinity(prompt_tokens: int) -> None:
    """All of them began with the same wrong estimate, and all of them correct it."""
    book, body = a_book(), a_body("hello " * 100)
    for number in range(6):
        sessions = [
            Session(id=f"{number}-{at}", tenant="t", kind=CallKind.CHAT, identified=True)
            for at in range(500)
        ]
        calls = [book.begin(session, body, "small", 0.0, slo_wish({})) for session in sessions]
        for session, call in zip(sessions, calls, strict=True):
            usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=64)
            book.usage(call, usage, cached_tokens=None)
            book.end(session, call, Outcome.OK, None)
            assert session.active_calls == 0
    assert book.tokens_of("small", body.prompt_bytes) == pytest.approx(prompt_tokens, abs=2)
