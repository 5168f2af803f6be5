"""A session's timeline of shadow work: what ran, how long, what it cost and how it ended."""

from __future__ import annotations

from coordinator.calls import CallKind
from coordinator.sessions import KEPT_SHADOW_RECORDS, Session, ShadowRecord, ShadowWorkKind
from tests.coordinator.call_rig import TWO_PD, a_chat, a_coordinator
from tests.coordinator.call_rig import until as until_so
from tests.coordinator.shadow_rig import a_rig, said, some_words, until

QUESTION = [said("system", "You help."), said("user", some_words(400))]


def a_record(end_tokens: int) -> ShadowRecord:
    return ShadowRecord(
        kind=ShadowWorkKind.SEGMENT,
        model="large",
        started_s=0.0,
        end_tokens=end_tokens,
        outcome="done",
    )


async def test_segments_and_pushes_are_recorded_with_what_they_cost() -> None:
    async with a_rig(disaggregated=True) as rig:
        session = rig.session()
        rig.answer(session, rig.call(session, "small", messages=QUESTION), "so be it")
        await rig.idle()
        warmth = session.warmth_of("large")
        records = session.shadow_records
        assert {record.outcome for record in records} == {"done"}
        assert all(record.took_s is not None and record.took_s >= 0 for record in records)
        tokens = {
            kind: sum(record.tokens for record in records if record.kind is kind)
            for kind in ShadowWorkKind
        }
        assert tokens == {
            ShadowWorkKind.SEGMENT: warmth.computed_tokens,
            ShadowWorkKind.PUSH: warmth.pushed_tokens,
        }
        assert max(record.end_tokens for record in records) == warmth.covered_tokens


async def test_a_segment_that_a_call_stops_says_so_and_one_that_runs_has_no_end_yet() -> None:
    async with a_rig() as rig:
        rig.engines["large"].faults.hang()
        session = rig.session()
        rig.call(session, "small", messages=QUESTION)
        await until(lambda: bool(session.shadow_records))
        (record,) = session.shadow_records
        assert (record.outcome, record.took_s) == ("running", None)
        rig.call(session, "large", messages=QUESTION)
        await until(lambda: record.outcome == "stopped")
        assert record.took_s is not None
        rig.engines["large"].faults.release()


async def test_a_lost_segment_names_the_failure() -> None:
    async with a_rig() as rig:
        rig.engines["large"].faults.fail_next(500)
        session = rig.session()
        rig.answer(session, rig.call(session, "small", messages=QUESTION), "so be it")
        await rig.idle()
        assert session.shadow_records[0].outcome == "engine_error"
        assert session.shadow_records[0].tokens == 0


def test_only_the_newest_are_kept() -> None:
    session = Session(id="s", tenant="t", kind=CallKind.CHAT, identified=True)
    for end_tokens in range(KEPT_SHADOW_RECORDS + 5):
        session.record_shadow(a_record(end_tokens))
    assert len(session.shadow_records) == KEPT_SHADOW_RECORDS
    assert session.shadow_records[0].end_tokens == 5


async def test_the_api_shows_them_with_their_age() -> None:
    async with a_coordinator(TWO_PD, shadow=True) as rig:
        await rig.chat(a_chat("words " * 300), x_session_id="s")
        shadow = rig.app.state.shadow
        await until_so(lambda: shadow.counters.pushed_tokens, "large is warm")
        await until_so(lambda: not shadow.running, "nothing runs any more")
        rows = (await rig.client.get("/v1/sessions/s")).json()["shadow_work"]
        assert {row["kind"] for row in rows} == {"segment", "push"}
        assert {row["model"] for row in rows} == {"large"}
        assert all(row["age_s"] >= row["took_s"] >= 0 for row in rows)
        assert sum(row["tokens"] for row in rows if row["kind"] == "segment") == (
            shadow.counters.computed_tokens
        )
