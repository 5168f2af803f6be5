"""Newer histories, switches and ends of sessions: what they do to a running shadow."""

from __future__ import annotations

from policy.warmth import HeldPrefix
from tests.coordinator.shadow_rig import BLOCK, SEGMENT, a_rig, said, some_words, until

QUESTION = [said("system", "You help."), said("user", some_words(200))]
ANSWER = some_words(60, "a")
AFTER = [*QUESTION, said("assistant", ANSWER), said("user", "go on")]


async def test_a_segment_in_flight_goes_on_while_it_is_a_prefix_of_the_newer_history() -> None:
    async with a_rig() as rig:
        session, engine = rig.session(), rig.engines["large"]
        engine.faults.hang()
        call = rig.call(session, "small", messages=QUESTION)
        await until(lambda: len(engine.generating()) == 1)
        rig.answer(session, call, ANSWER)
        job = rig.job(session, "large")
        await until(lambda: job.version == 2)
        assert session.warmth_of("large").superseded == 1
        assert session.warmth_of("large").running_tokens == SEGMENT
        engine.faults.release()
        await rig.idle()
        assert engine.cancelled == 0
        assert rig.segments("large")[0] == SEGMENT
        assert rig.segments("large")[-1] == session.warmth_of("large").covered_tokens > SEGMENT


async def test_a_segment_that_is_no_prefix_of_the_newer_history_is_cancelled() -> None:
    async with a_rig() as rig:
        session, engine = rig.session(), rig.engines["large"]
        engine.faults.hang()
        rig.call(session, "small", messages=QUESTION)
        await until(lambda: len(engine.generating()) == 1)
        other = [said("user", some_words(150, "other"))]
        rig.call(session, "small", messages=other)
        await until(lambda: engine.cancelled == 1)
        engine.faults.release()
        await rig.idle()
        assert rig.cached(session, "large", other) > SEGMENT
        assert rig.cached(session, "large", QUESTION) == 0


async def test_a_burst_of_histories_renders_only_the_newest() -> None:
    async with a_rig() as rig:
        session, engine = rig.session(), rig.engines["large"]
        engine.faults.freeze()
        rig.call(session, "small", messages=QUESTION)
        await until(lambda: rig.flow.counters.jobs == 1)
        for count in range(5):
            rig.call(session, "small", messages=[*QUESTION, said("assistant", f"a{count}")])
            await until(lambda: rig.flow.counters.jobs == rig.calls)
        engine.faults.thaw()
        await rig.idle()
        assert rig.flow.counters.coalesced == 4
        assert rig.flow.counters.renders == 4


async def test_a_front_end_has_one_render_of_ours_at_a_time() -> None:
    async with a_rig() as rig:
        engine = rig.engines["large"]
        engine.faults.freeze()
        for name in ("s1", "s2", "s3"):
            rig.call(rig.session(name), "small", messages=QUESTION)
        await until(lambda: rig.flow.counters.jobs == 3)
        engine.faults.thaw()
        await rig.idle()
        renders = [
            one.body["messages"][-1]["content"]
            for one in engine.requests
            if not one.body.get("prompt")
        ]
        # Two futures per history, never mixed with those of another session.
        assert len(renders) == 6
        assert all(a != b for a, b in zip(renders[::2], renders[1::2], strict=True))


async def test_a_switch_call_cancels_the_shadow_at_its_target_at_once() -> None:
    async with a_rig() as rig:
        session, engine = rig.session(), rig.engines["large"]
        engine.faults.hang()
        rig.answer(session, rig.call(session, "small", messages=QUESTION), ANSWER)
        await until(lambda: len(engine.generating()) == 1)
        rig.call(session, "large", messages=AFTER)
        job = rig.job(session, "large")
        assert not job.is_busy  # before anything else could run
        # still there for the call's own book-keeping: part of that segment is cached
        assert session.warmth_of("large").running_tokens == SEGMENT
        await until(lambda: engine.cancelled == 1)
        engine.faults.release()
        await rig.idle()
        assert rig.flow.counters.cancelled == {"switch": 1}
        assert len(engine.generating()) == 1
        assert rig.cached(session, "small", AFTER) > 0


async def test_an_answer_that_ended_just_before_the_switch_does_not_restart_the_shadow() -> None:
    async with a_rig() as rig:
        session = rig.session()
        call = rig.call(session, "small", messages=QUESTION)
        await rig.idle()
        sent = len(rig.engines["large"].requests)
        rig.answer(session, call, ANSWER)
        rig.call(session, "large", messages=AFTER)
        await rig.idle()
        assert len(rig.engines["large"].requests) == sent


async def test_a_switched_session_counts_what_the_shadow_saved() -> None:
    async with a_rig() as rig:
        session = rig.session()
        rig.answer(session, rig.call(session, "small", messages=QUESTION), ANSWER)
        await rig.idle()
        warmth = session.warmth_of("large")
        held = HeldPrefix(own_tokens=warmth.own_tokens, shadow_tokens=warmth.shadow_tokens)
        assert held.own_tokens == 0
        assert held.shadow_tokens == warmth.covered_tokens == rig.cached(session, "large", AFTER)


async def test_shadow_off_and_a_finished_session_stop_what_runs() -> None:
    async with a_rig() as rig:
        engine = rig.engines["large"]
        engine.faults.hang()
        first, second = rig.session("s1"), rig.session("s2")
        for session in (first, second):
            rig.call(session, "small", messages=QUESTION)
        await until(lambda: len(engine.generating()) == 2)
        first.shadow_enabled = False
        rig.call(first, "small", messages=AFTER)
        rig.flow.session_finished(second)
        await until(lambda: engine.cancelled == 2)
        engine.faults.release()
        await rig.idle()
        assert rig.flow.counters.cancelled == {"shadow_off": 1, "session_finished": 1}
        assert rig.flow._sessions == {}


async def test_the_least_recent_session_is_forgotten_when_there_are_too_many() -> None:
    async with a_rig() as rig:
        limits = rig.config.coordinator.model_copy(update={"max_sessions": 2})
        rig.flow._config = rig.config.model_copy(update={"coordinator": limits})
        for name in ("s1", "s2", "s1", "s3"):
            rig.call(rig.session(name), "small", messages=QUESTION)
        await rig.idle()
        assert [key[1] for key in rig.flow._sessions] == ["s1", "s3"]


async def test_of_parallel_calls_the_newest_one_makes_the_history() -> None:
    async with a_rig() as rig:
        session = rig.session()
        older = rig.call(session, "small", messages=QUESTION)
        newer = rig.call(session, "small", messages=AFTER)
        rig.answer(session, older, "stray " * 100)
        rig.answer(session, newer, "fine")
        await rig.idle()
        after = [*AFTER, said("assistant", "fine"), said("user", "x")]
        missing = len(rig.prompt_ids("large", after)) - rig.cached(session, "large", after)
        assert missing <= 2 * BLOCK
        assert rig.flow._feeds == {}


async def test_two_tenants_with_one_session_id_share_neither_cache_nor_marks() -> None:
    async with a_rig() as rig:
        mine, theirs = rig.session("s1", "tenant-A1"), rig.session("s1", "tenant-B1")
        rig.call(mine, "small", messages=QUESTION)
        await rig.idle()
        assert rig.cached(mine, "large", QUESTION) > 0
        assert rig.cached(theirs, "large", QUESTION) == 0


async def test_stopping_cancels_everything_that_runs() -> None:
    async with a_rig() as rig:
        session, engine = rig.session(), rig.engines["large"]
        engine.faults.hang()
        call = rig.call(session, "small", messages=QUESTION)
        await until(lambda: len(engine.generating()) == 1)
        await rig.flow.stop()
        await until(lambda: engine.cancelled == 1)
        rig.answer(session, call, ANSWER)  # a call that is still running does no harm
        assert rig.flow._worker._tasks == set()
