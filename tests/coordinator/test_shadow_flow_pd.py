"""Shadow work of disaggregated models: P computes, one hand-off at a time goes to D."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from bench.fake_engine.model import asked_push
from coordinator.sessions import ShadowState
from policy.vocabulary import Role
from tests.coordinator.shadow_rig import SEGMENT, Rig, a_rig, said, some_words, until

if TYPE_CHECKING:
    from bench.fake_engine import FakeEngine

QUESTION = [said("system", "You help."), said("user", some_words(200))]
ANSWER = some_words(60, "a")
AFTER = [*QUESTION, said("assistant", ANSWER), said("user", "go on")]
LONGER = [*AFTER[:-1], said("user", some_words(90, "n"))]


def hand_offs(rig: Rig) -> list[int]:
    """Lengths of the segments that P was asked to hand over."""
    requests = rig.engines["large-p"].generating()
    return [len(one.body["prompt"]) for one in requests if "kv_transfer_params" in one.body]


def asks(engine: FakeEngine) -> list[bool]:
    """Of the asks for a push that an engine got: whether it gave a grant back."""
    found = [asked_push(one.body) for one in engine.requests]
    return [ask.gives_back for ask in found if ask is not None]


def is_answered(rig: Rig, reason: str, times: int = 1) -> bool:
    return rig.flow.counters.asks[reason] >= times


async def test_every_segment_is_computed_by_p_and_relayed_once_to_d() -> None:
    async with a_rig(disaggregated=True) as rig:
        session = rig.session()
        rig.answer(session, rig.call(session, "small", messages=QUESTION), ANSWER)
        await rig.idle()
        assert len(rig.segments("large-p")) >= 3
        assert rig.segments("large-d") == rig.segments("large-p") == hand_offs(rig)
        p, d = rig.engines["large-p"], rig.engines["large-d"]
        assert (p.pinned_handoffs, d.refused_handoffs) == (0, 0)
        warmth = session.warmth_of("large")
        assert warmth.pushed_tokens == warmth.covered_tokens == warmth.computed_tokens
        assert rig.cached(session, "large-p", AFTER) == warmth.covered_tokens
        assert rig.cached(session, "large-d", AFTER) == warmth.covered_tokens
        assert d.pulled_tokens <= warmth.covered_tokens


async def test_without_pushes_a_shadow_stays_on_p() -> None:
    async with a_rig(disaggregated=True, pushes=False) as rig:
        session = rig.session()
        rig.answer(session, rig.call(session, "small", messages=QUESTION), ANSWER)
        await rig.idle()
        assert rig.segments("large-p")
        assert rig.segments("large-d") == hand_offs(rig) == []
        warmth = session.warmth_of("large")
        assert warmth.covered_tokens > warmth.pushed_tokens == 0
        assert rig.cached(session, "large-p", AFTER) == warmth.covered_tokens


async def test_p_never_pins_a_second_hand_off_in_front_of_a_busy_d() -> None:
    async with a_rig(disaggregated=True) as rig:
        p, d = rig.engines["large-p"], rig.engines["large-d"]
        d.faults.hang()
        sessions = [rig.session(f"s{number}") for number in range(3)]
        for session in sessions:
            rig.call(session, "small", messages=QUESTION)
        done = len(rig.prompt_ids("large-p", QUESTION)) - 2 * SEGMENT
        await until(lambda: sum(s.warmth_of("large").covered_tokens > done for s in sessions) == 2)
        assert len(d.generating()) == 1
        assert p.pinned_handoffs == 1
        assert len(hand_offs(rig)) == 1
        assert rig.flow.counters.slot_busy >= 2
        d.faults.release()
        await rig.idle()
        assert (p.pinned_handoffs, d.refused_handoffs) == (0, 0)
        for session in sessions:
            warmth = session.warmth_of("large")
            assert rig.cached(session, "large-d", QUESTION) == warmth.covered_tokens > done


async def test_what_d_missed_is_pushed_later_in_pieces_of_one_segment() -> None:
    async with a_rig(disaggregated=True) as rig:
        p, d = rig.engines["large-p"], rig.engines["large-d"]
        d.faults.hang()
        short = [said("user", some_words(40))]
        rig.call(rig.session("s1"), "small", messages=short)
        await until(lambda: len(d.generating()) == 1)
        late = rig.session("s2")
        rig.call(late, "small", messages=[said("user", some_words(500))])
        warmth = late.warmth_of("large")
        await until(lambda: rig.flow.counters.slot_busy == 1)
        p.faults.hang()
        await until(lambda: warmth.running_tokens > warmth.covered_tokens)
        d.faults.release()  # the slot is free while segments are still to come
        await until(lambda: d.running == 0)
        p.faults.release()
        await rig.idle()
        pushes = rig.segments("large-d")[1:]
        assert max(b - a for a, b in zip([0, *pushes], pushes, strict=False)) <= SEGMENT
        assert warmth.covered_tokens == pushes[-1] > 4 * SEGMENT
        shared = pushes[-1] - warmth.pushed_tokens  # with what the first session had pushed
        assert 0 <= shared < SEGMENT


async def test_a_d_that_hangs_does_not_hold_up_p() -> None:
    async with a_rig(disaggregated=True) as rig:
        session, d = rig.session(), rig.engines["large-d"]
        d.faults.hang()
        rig.call(session, "small", messages=QUESTION)
        warmth = session.warmth_of("large")
        await until(lambda: warmth.segments > 1 and warmth.missing_tokens == 0)
        await until(lambda: warmth.state is ShadowState.PUSHING)
        assert warmth.pushed_tokens == 0
        assert len(hand_offs(rig)) == len(d.generating()) == 1
        d.faults.release()
        await rig.idle()
        assert warmth.pushed_tokens == warmth.covered_tokens
        assert warmth.state is ShadowState.IDLE


async def test_a_pull_of_a_history_that_was_rewritten_is_cancelled() -> None:
    async with a_rig(disaggregated=True) as rig:
        session, d = rig.session(), rig.engines["large-d"]
        d.faults.hang()
        rig.call(session, "small", messages=QUESTION)
        await until(lambda: len(d.generating()) == 1)
        other = [said("user", some_words(150, "other"))]
        rig.call(session, "small", messages=other)
        await until(lambda: d.cancelled == 1)
        d.faults.release()
        await rig.idle()
        warmth = session.warmth_of("large")
        assert rig.cached(session, "large-d", other) == warmth.covered_tokens > SEGMENT


async def test_a_failed_pull_is_counted_and_p_keeps_the_shadow() -> None:
    async with a_rig(disaggregated=True) as rig:
        session, d = rig.session(), rig.engines["large-d"]
        d.faults.fail_next(500)
        rig.call(session, "small", messages=QUESTION)
        await rig.idle()
        warmth = session.warmth_of("large")
        assert rig.flow.counters.failed == {"push_engine_error": 1}
        assert warmth.failed == 1
        assert warmth.missing_tokens == 0
        assert rig.cached(session, "large-p", QUESTION) == warmth.covered_tokens
        assert len(d.generating()) == 1  # not again for this history
        rig.call(session, "small", messages=AFTER)
        await rig.idle()
        assert warmth.pushed_tokens == warmth.covered_tokens
        assert rig.cached(session, "large-d", AFTER) == warmth.covered_tokens


async def test_without_a_healthy_d_the_shadow_stays_on_p() -> None:
    async with a_rig(disaggregated=True) as rig:
        session = rig.session()
        rig.cluster.sticky_pair(session, "large")
        pair = rig.cluster.sticky_pair(session, "large")
        rig.call(session, "small", messages=QUESTION)
        pair.decode.healthy = False
        await rig.idle()
        assert hand_offs(rig) == []
        assert rig.engines["large-d"].requests == []


async def test_without_a_healthy_p_no_shadow_is_computed_on_d() -> None:
    async with a_rig(disaggregated=True) as rig:
        session = rig.session()
        rig.cluster.instances["large-p"].healthy = False
        rig.call(session, "small", messages=QUESTION)
        await rig.idle()
        assert rig.flow.counters.failed == {"render_unavailable": 1}
        assert rig.engines["large-d"].requests == []
        assert rig.engines["large-p"].requests == []


async def test_an_answer_without_a_hand_off_is_a_counted_failure() -> None:
    async with a_rig(disaggregated=True) as rig:
        rig.engines["large-p"].faults.forget_handoff()
        rig.call(rig.session(), "small", messages=QUESTION)
        await rig.idle()
        assert rig.flow.counters.failed == {"segment_unreadable": 1}
        d = rig.engines["large-d"]
        assert d.generating() == []
        assert asks(d) == [False, True]  # a slot that was not used is given back


async def test_a_switch_during_a_push_closes_the_pull_and_frees_the_slot() -> None:
    async with a_rig(disaggregated=True) as rig:
        session, d = rig.session(), rig.engines["large-d"]
        d.faults.hang()
        rig.answer(session, rig.call(session, "small", messages=QUESTION), ANSWER)
        await until(lambda: len(d.generating()) == 1)
        assert session.warmth_of("large").state is ShadowState.PUSHING
        rig.call(session, "large", messages=AFTER)
        await until(lambda: d.cancelled == 1)
        d.faults.release()
        other = rig.session("s2")
        rig.call(other, "small", messages=QUESTION)
        await rig.idle()
        covered = other.warmth_of("large").covered_tokens
        assert rig.cached(other, "large-d", QUESTION) == covered > 0


async def test_a_shadow_stays_on_the_p_that_holds_it_while_others_are_idle() -> None:
    async with a_rig(disaggregated=True, prefills=3) as rig:
        prefills = [one for one in rig.cluster.of_model("large") if one.role is Role.PREFILL]
        for number in range(6):
            session = rig.session(f"s{number}")
            first = prefills[number % 3]
            for other in prefills:
                other.inflight_tokens = 0 if other is first else 100_000
            rig.answer(session, rig.call(session, "small", messages=QUESTION), ANSWER)
            await rig.idle()
            for other in prefills:
                other.inflight_tokens = 0
            covered = session.warmth_of("large").covered_tokens
            rig.call(session, "small", messages=LONGER)
            await rig.idle()
            assert session.warmth_of("large").covered_tokens > covered
            assert rig.cached(session, first.name, LONGER) > covered


async def test_p_is_asked_for_no_hand_off_before_d_has_granted_a_push() -> None:
    async with a_rig(disaggregated=True) as rig:
        session, d = rig.session(), rig.engines["large-d"]
        d.refuses_pushes = "normal_transfer_in"
        rig.call(session, "small", messages=QUESTION)
        warmth = session.warmth_of("large")
        await until(lambda: warmth.missing_tokens == 0 and is_answered(rig, d.refuses_pushes, 3))
        assert hand_offs(rig) == []
        assert rig.engines["large-p"].pinned_handoffs == 0
        d.refuses_pushes = ""
        await rig.idle()
        assert warmth.pushed_tokens == warmth.covered_tokens
        assert rig.cached(session, "large-d", QUESTION) == warmth.covered_tokens
        assert rig.flow.counters.failed == {}


@pytest.mark.parametrize("reason", ["truncated_by_cap", "shadow_off", "no_handoff"])
async def test_a_refusal_that_will_not_pass_ends_the_pushes_of_this_history(reason: str) -> None:
    async with a_rig(disaggregated=True) as rig:
        session, d = rig.session(), rig.engines["large-d"]
        d.refuses_pushes = reason
        rig.call(session, "small", messages=QUESTION)
        await rig.idle()
        assert session.warmth_of("large").missing_tokens == 0
        assert rig.flow.counters.asks == {reason: 1}
        d.refuses_pushes = ""
        rig.call(session, "small", messages=AFTER)
        await rig.idle()
        assert rig.cached(session, "large-d", AFTER) == session.warmth_of("large").covered_tokens


async def test_what_d_has_evicted_is_pushed_again() -> None:
    async with a_rig(disaggregated=True) as rig:
        session, d = rig.session(), rig.engines["large-d"]
        rig.call(session, "small", messages=QUESTION)
        await rig.idle()
        d.cache.clear()
        rig.call(session, "small", messages=LONGER)
        await rig.idle()
        assert rig.cached(session, "large-d", LONGER) == session.warmth_of("large").covered_tokens
        pushes = rig.segments("large-d")
        assert max(b - a for a, b in pairwise(pushes) if b > a) <= SEGMENT


async def test_what_d_holds_already_is_not_pushed() -> None:
    async with a_rig(disaggregated=True) as rig:
        first, second, d = rig.session("s1"), rig.session("s2"), rig.engines["large-d"]
        rig.call(first, "small", messages=QUESTION)
        await rig.idle()
        pushes = len(d.generating())
        rig.call(second, "small", messages=QUESTION)
        await rig.idle()
        assert len(d.generating()) == pushes
        assert rig.flow.counters.asks["nothing_missing"] > 0
        assert second.warmth_of("large").pushed_tokens == 0


async def test_no_push_is_longer_than_the_configuration_says() -> None:
    async with a_rig(disaggregated=True, push_tokens=96) as rig:
        session = rig.session()
        rig.call(session, "small", messages=QUESTION)
        await rig.idle()
        pushes = rig.segments("large-d")
        assert max(b - a for a, b in zip([0, *pushes], pushes, strict=False)) <= 96
        assert pushes[-1] == session.warmth_of("large").covered_tokens
        assert rig.engines["large-p"].pinned_handoffs == 0


async def test_d_is_told_of_the_calls_that_leave_the_p_which_would_push() -> None:
    async with a_rig(disaggregated=True) as rig:
        rig.cluster.instances["large-p"].handoffs_out = 3
        rig.call(rig.session(), "small", messages=QUESTION)
        await rig.idle()
        found = [asked_push(one.body) for one in rig.engines["large-d"].requests]
        told = {(ask.normal_out, ask.peer) for ask in found if ask is not None}
        assert told == {(3, "127.0.0.1:5600")}
