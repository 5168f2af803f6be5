"""The five kinds look as Table 1 says, and a session's prompts fit together."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.workloads.sessions import (
    Lognormal,
    SessionLaw,
    draw_session,
    draw_sessions,
    session_kind,
    session_kinds,
)

KINDS = sorted(session_kinds())


def test_the_five_kinds_of_table_1() -> None:
    assert KINDS == ["FusionBench", "GHCP-coding", "Router-R1", "SWE-bench", "xRouteBench"]


@pytest.mark.parametrize("kind", KINDS)
def test_drawn_sessions_have_the_published_sizes(kind: str) -> None:
    published = session_kind(kind).published
    rng = np.random.default_rng(5)
    sessions = [draw_session(kind, str(i), 0.0, rng) for i in range(2500)]
    prompts = np.array([call.prompt_tokens for session in sessions for call in session.calls])
    assert prompts.mean() == pytest.approx(published.prompt_mean_tokens, rel=0.08)
    assert np.quantile(prompts, 0.99) == pytest.approx(published.prompt_p99_tokens, rel=0.12)
    calls = np.mean([len(session.calls) for session in sessions])
    assert calls == pytest.approx(published.calls_per_session, rel=0.08)


@settings(max_examples=40)
@given(st.sampled_from(KINDS), st.integers(0, 2**63))
def test_a_prompt_starts_with_the_history_or_after_a_compaction_with_a_summary(
    kind: str, seed: int
) -> None:
    law = session_kind(kind).law
    session = draw_session(kind, "s", 3.0, np.random.default_rng(seed))
    history = 0
    for number, call in enumerate(session.calls):
        assert call.kept_tokens in (0, history)
        assert call.new_tokens >= 1
        assert call.output_tokens >= 1
        assert call.prompt_tokens + call.output_tokens <= law.window_tokens
        assert (call.gap_s == 0) if number == 0 else (call.gap_s > 0)
        if number and call.kept_tokens == 0:
            assert call.new_tokens > law.summary_tokens
        history = call.prompt_tokens + call.output_tokens
    assert session.task in session_kind(kind).tasks


def test_a_history_that_outgrows_the_window_is_compacted() -> None:
    rng = np.random.default_rng(1)
    sessions = [draw_session("GHCP-coding", "s", 0.0, rng) for _ in range(300)]
    compacted = [s for s in sessions if any(c.kept_tokens == 0 for c in s.calls[1:])]
    assert 0 < len(compacted) < len(sessions) / 4


@pytest.mark.parametrize("kind", KINDS)
def test_same_seed_same_bytes(kind: str) -> None:
    drawn, again = (draw_sessions(kind, 0.5, 60, np.random.default_rng(9)) for _ in range(2))
    assert msgspec.json.encode(drawn) == msgspec.json.encode(again)
    assert drawn != draw_sessions(kind, 0.5, 60, np.random.default_rng(10))


def test_sessions_arrive_in_order_at_their_rate() -> None:
    sessions = draw_sessions("Router-R1", 0.5, 1000, np.random.default_rng(4))
    arrivals_s = [session.arrival_s for session in sessions]
    assert arrivals_s == sorted(arrivals_s)
    assert len(sessions) == pytest.approx(500, rel=0.15)
    assert len({session.session_id for session in sessions}) == len(sessions)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: session_kind("WebArena"), "session kind must be one of .*, got 'WebArena'"),
        (
            lambda: draw_sessions("SWE-bench", 0, 5, np.random.default_rng(0)),
            "sessions_per_s and duration_s must be > 0, got 0 and 5",
        ),
        (lambda: Lognormal(median=0, sigma=1), "median must be > 0 and sigma >= 0, got 0, 1"),
        (lambda: Lognormal(median=1, sigma=1, least=3, most=2), "limits must be"),
    ],
)
def test_wrong_input_is_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_summary_must_leave_room() -> None:
    law = msgspec.to_builtins(session_kind("SWE-bench").law)
    with pytest.raises(msgspec.ValidationError, match="less than half of the window of 2000"):
        msgspec.convert({**law, "window_tokens": 2000}, SessionLaw)
