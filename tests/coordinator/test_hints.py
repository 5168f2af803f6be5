"""A hint changes what is kept warm: while a call runs, between calls, and at the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from coordinator.calls import CallKind
from coordinator.history import History
from coordinator.kept_histories import KeptHistories
from tests.coordinator.call_rig import COLOCATED, a_chat, a_coordinator, until

if TYPE_CHECKING:
    from coordinator.sessions import Session
    from tests.coordinator.call_rig import Rig

WORDS = " ".join(f"w{at}" for at in range(300))
THREE = COLOCATED | {"huge-1": ("huge", "colocated")}


async def a_session(rig: Rig) -> Session:
    await rig.chat(a_chat(WORDS), x_session_id="s")
    (session,), _ = await rig.app.state.sessions.page("anonymous", 0, 10)
    await quiet(rig)
    return session


async def quiet(rig: Rig) -> None:
    shadow = rig.app.state.shadow
    await until(lambda: not shadow._changed and not shadow.running, "no shadow work is left")


async def hint(rig: Rig, **body: Any) -> dict[str, Any]:
    reply = await rig.client.post("/v1/sessions/s/hints", json=body)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


async def test_a_hint_between_calls_warms_a_model_that_was_left_out() -> None:
    async with a_coordinator(THREE, shadow=True, shadow_params={"top_k": 1}) as rig:
        session = await a_session(rig)
        warm, left_out = (
            ("large", "huge") if session.peek("large").shadow_tokens else ("huge", "large")
        )
        assert session.peek(left_out).shadow_tokens == 0
        answer = await hint(rig, probabilities={left_out: 0.9, warm: 0.05})
        assert answer["targets"] == [{"model": left_out, "probability": 0.9}]
        await until(lambda: session.peek(left_out).shadow_tokens >= 288, "it is warm, too")


async def test_a_hint_while_a_call_runs_redirects_its_shadows() -> None:
    slow = {"chunk_delay_s": 0.2}
    async with a_coordinator(THREE, shadow=True, engine=slow) as rig:
        await a_session(rig)
        calling = rig.client.stream(
            "POST", "/v1/chat/completions", json=a_chat(WORDS, stream=True, session_id="s")
        )
        async with calling as reply:
            await anext(reply.aiter_raw())
            answer = await hint(rig, plan=["huge", "small"])
            assert [target["model"] for target in answer["targets"]] == ["huge"]
            await reply.aread() if not reply.is_stream_consumed else None
        feeds = rig.app.state.shadow._feeds
        assert not feeds or all(len(feed.targets) == 1 for feed in feeds.values())


async def test_a_plan_is_followed_call_by_call_and_ends_where_a_call_leaves_it() -> None:
    async with a_coordinator(THREE, shadow=True) as rig:
        session = await a_session(rig)
        await hint(rig, plan=["large", "huge", "small"])
        await rig.chat(a_chat(WORDS, model="large"), x_session_id="s")
        assert session.hint_plan == ["huge", "small"]
        await rig.chat(a_chat(WORDS, model="small"), x_session_id="s")
        assert session.hint_plan == []
        text = (await rig.client.get("/metrics")).text
        assert 'shadowprefill_hints_total{end="followed"} 1.0' in text
        assert 'shadowprefill_hints_total{end="not_followed"} 1.0' in text


async def test_a_model_that_the_plan_never_needs_is_not_warmed() -> None:
    async with a_coordinator(THREE, shadow=True) as rig:
        session = await a_session(rig)
        await hint(rig, plan=["small", "large"])
        await rig.chat(a_chat(WORDS + " more " * 50), x_session_id="s")
        await quiet(rig)
        assert session.peek("large").rendered_call == 2
        assert session.peek("huge").rendered_call == 1


async def test_the_next_hint_takes_the_place_of_the_one_before() -> None:
    async with a_coordinator(COLOCATED) as rig:
        await rig.chat(a_chat(), x_session_id="s")
        (session,), _ = await rig.app.state.sessions.page("anonymous", 0, 10)
        await hint(rig, plan=["large"])
        await hint(rig, probabilities={"large": 0.4})
        assert (session.hint_plan, session.hint_scores) == ([], {"large": 0.4})


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({}, 400, "probabilities or a plan"),
        ({"plan": ["large"], "probabilities": {"large": 1}}, 400, "not both"),
        ({"plan": ["nobody"]}, 404, "nobody"),
        ({"probabilities": {"nobody": 0.5}}, 404, "nobody"),
        ({"probabilities": {"large": 1.5}}, 400, "less than or equal to 1"),
        ({"probabilities": {"large": -0.5}}, 400, "greater than or equal to 0"),
        ({"probabilities": {"large": 0.7, "small": 0.7}}, 400, "sum to at most 1"),
        ({"plan": ["large"] * 65}, 400, "64"),
        ({"plans": ["large"]}, 400, "plans"),
        ([], 400, "object"),
    ],
)
async def test_a_hint_that_is_none_is_refused_with_its_reason(
    body: Any, status: int, word: str
) -> None:
    async with a_coordinator(COLOCATED) as rig:
        await rig.chat(a_chat(), x_session_id="s")
        reply = await rig.client.post("/v1/sessions/s/hints", json=body)
        assert reply.status_code == status
        error = reply.json()["error"]
        assert word in f"{error['message']} {error['param']}"


async def test_a_hint_for_a_session_of_another_tenant_is_a_hint_for_none() -> None:
    async with a_coordinator(COLOCATED) as rig:
        await rig.chat(a_chat(), x_session_id="s")
        asked = {"json": {"plan": ["large"]}, "headers": {"authorization": "Bearer other"}}
        reply = await rig.client.post("/v1/sessions/s/hints", **asked)
        assert reply.status_code == 404


def a_history(size: int) -> History:
    return History(kind=CallKind.TEXT, text=b"x" * size, fields={})


def test_kept_histories_are_bounded_by_bytes_and_the_oldest_go_first() -> None:
    kept = KeptHistories(limit_bytes=100)
    for name in ("a", "b", "c"):
        kept.keep(("t", name), a_history(40))
    assert kept.of(("t", "a")) is None
    assert kept.of(("t", "c")) is not None
    kept.keep(("t", "b"), a_history(60))
    assert kept.of(("t", "b")) is not None
    kept.keep(("t", "huge"), a_history(1000))
    assert kept.of(("t", "huge")) is None
    assert kept._bytes == 0
