"""Failures of shadow work: each is counted, none reaches a call, the next job works."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from tests.coordinator.shadow_rig import SEGMENT, Rig, a_rig, said, some_words, sse, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.sessions import Session

QUESTION = [said("system", "You help."), said("user", some_words(200))]
AFTER = [*QUESTION, said("assistant", "yes"), said("user", "go on")]


async def the_next_job_works(rig: Rig, session: Session) -> None:
    rig.answer(session, rig.call(session, "small", messages=AFTER), "done")
    await rig.idle()
    warmth = session.warmth_of("large")
    assert warmth.missing_tokens == 0
    assert warmth.covered_tokens > 0
    assert rig.cached(session, "large", AFTER) > 0


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (lambda rig: rig.engines["large"].faults.fail_next(500), "segment_engine_error"),
        (lambda rig: rig.engines["large"].faults.fail_next(400), "segment_rejected"),
        (lambda rig: rig.engines["large"].faults.drop_next(2), "segment_unavailable"),
    ],
    ids=["500", "400", "dropped"],
)
async def test_a_failed_segment_ends_the_job_of_this_history_only(
    break_it: Callable[[Rig], None], reason: str
) -> None:
    async with a_rig() as rig:
        session = rig.session()
        break_it(rig)
        call = rig.call(session, "small", messages=QUESTION)
        await rig.idle()
        assert rig.flow.counters.failed == {reason: 1}
        warmth = session.warmth_of("large")
        assert (warmth.failed, warmth.state, warmth.running_tokens) == (1, "idle", 0)
        assert set(rig.segments("large")) == {SEGMENT}
        # The second drop is for the retry of a connection that looked merely stale.
        while rig.engines["large"].faults.take_drop():
            pass
        rig.flow.call_ended(session, call, ok=False)
        await the_next_job_works(rig, session)


async def test_a_frozen_engine_costs_one_timeout_and_then_works_again() -> None:
    async with a_rig(timeout_s=1.5) as rig:
        session = rig.session()
        rig.engines["large"].faults.freeze()
        rig.call(session, "small", messages=QUESTION)
        await rig.idle()
        assert rig.flow.counters.failed == {"render_timed_out": 1}
        rig.engines["large"].faults.thaw()
        await the_next_job_works(rig, session)


async def test_a_hanging_segment_is_given_up_after_the_timeout() -> None:
    async with a_rig(timeout_s=1.5) as rig:
        session = rig.session()
        rig.engines["large"].faults.hang()
        rig.call(session, "small", messages=QUESTION)
        await rig.idle()
        assert rig.flow.counters.failed == {"segment_timed_out": 1}
        await until(lambda: rig.engines["large"].cancelled == 1)
        rig.engines["large"].faults.release()
        await the_next_job_works(rig, session)


async def test_a_killed_engine_and_a_hung_one_leave_the_other_targets_alone() -> None:
    async with a_rig(models=("small", "large", "huge")) as rig:
        session = rig.session()
        rig.engines["large"].faults.kill()
        rig.answer(session, rig.call(session, "small", messages=QUESTION), "yes")
        await rig.idle()
        assert rig.cached(session, "huge", AFTER) > 0
        assert set(rig.flow.counters.failed) == {"render_unavailable"}


async def test_a_prompt_beyond_the_targets_context_is_a_counted_failure() -> None:
    async with a_rig(max_model_len=512) as rig:
        session = rig.session()
        rig.call(session, "small", messages=QUESTION)
        await rig.idle()
        assert rig.flow.counters.failed == {"render_rejected": 1}
        assert rig.segments("large") == []


async def test_after_a_failed_call_the_job_covers_only_what_the_client_sent() -> None:
    async with a_rig() as rig:
        session = rig.session()
        call = rig.call(session, "small", messages=QUESTION)
        await rig.idle()
        covered = session.warmth_of("large").covered_tokens
        rig.flow.output_bytes(session, call, sse(content=some_words(40, "lost")))
        rig.flow.call_ended(session, call, ok=False)
        await rig.idle()
        assert session.warmth_of("large").covered_tokens == covered


async def test_an_unreadable_answer_is_not_built_on() -> None:
    async with a_rig() as rig:
        session = rig.session()
        call = rig.call(session, "small", messages=QUESTION)
        rig.flow.output_bytes(session, call, b"data: {broken\n\n" + sse(content="more"))
        rig.flow.call_ended(session, call, ok=True)
        await rig.idle()
        assert rig.flow.counters.skipped == {"unreadable_answer": 1}
        assert rig.cached(session, "large", QUESTION) > 0


async def test_a_bug_in_one_job_is_logged_and_the_flow_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_rig() as rig:
        session = rig.session()
        with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
            patch.setattr("coordinator.render.common_prefix_length", lambda *_: 1 / 0)
            rig.call(session, "small", messages=QUESTION)
            await rig.idle()
        assert rig.flow.counters.failed == {"bug": 1}
        assert "ZeroDivisionError" in caplog.text
        with monkeypatch.context() as patch:
            patch.setattr("coordinator.shadow_feed.history_of", lambda *_: 1 / 0)
            rig.call(session, "small", messages=QUESTION)
            await rig.idle()
        assert rig.flow.counters.failed == {"bug": 2}
        await the_next_job_works(rig, session)
