"""What the control API says of sessions, and to whom."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.calls import CallKind
from coordinator.session_store import MemoryStore
from tests.coordinator.call_rig import COLOCATED, TWO_PD, a_chat, a_coordinator, a_turn, until

WORDS = " ".join(f"w{at}" for at in range(300))
MINE, YOURS = {"authorization": "Bearer mine"}, {"authorization": "Bearer yours"}


async def test_a_session_says_per_model_where_it_is_and_what_is_warm() -> None:
    async with a_coordinator(TWO_PD) as rig:
        await rig.chat(a_chat(WORDS), x_session_id="s")
        row = (await rig.client.get("/v1/sessions/s")).json()["summary"]
        assert (row["session_id"], row["model"], row["calls"]) == ("s", "small", 1)
        assert row["is_named"] is True
        assert row["idle_s"] >= 0
        small = row["models"]["small"]
        assert (small["p_instance"], small["d_instance"]) == ("small-p", "small-d")
        assert small["history_exact"] is True
        assert 288 <= small["p_warm_tokens"] <= small["history_tokens"]
        assert 288 <= small["d_warm_tokens"] <= small["history_tokens"]
        assert small["missing_tokens"] == small["history_tokens"] - small["p_warm_tokens"]
        assert small["age_s"] >= 0


@pytest.mark.parametrize("layout", [TWO_PD, COLOCATED], ids=["pd", "colocated"])
async def test_shadow_tokens_are_computed_then_pending_then_used_or_wasted(
    layout: dict[str, Any],
) -> None:
    async with a_coordinator(layout, shadow=True) as rig:
        messages = a_turn(WORDS)
        reply = await rig.chat(a_chat(messages=messages), x_session_id="s")
        (session,), _ = await rig.app.state.sessions.page("anonymous", 0, 10)
        await until(lambda: session.warmth_of("large").shadow_tokens >= 288, "large is warm")
        await until(lambda: not rig.app.state.shadow.running, "nothing runs any more")
        large = (await rig.client.get("/v1/sessions/s")).json()["summary"]["models"]["large"]
        assert large["history_exact"] is True
        assert large["shadow_tokens_pending"] == large["shadow_tokens_computed"] >= 288
        assert large["p_warm_tokens"] == large["d_warm_tokens"] >= 288
        assert (large["shadow_tokens_used"], large["shadow_tokens_wasted"]) == (0, 0)

        messages.append(reply.json()["choices"][0]["message"])
        messages.append({"role": "user", "content": "go on"})
        await rig.chat(a_chat(messages=messages, model="large"), x_session_id="s")
        large = (await rig.client.get("/v1/sessions/s")).json()["summary"]["models"]["large"]
        assert large["shadow_tokens_used"] >= 288
        assert large["shadow_tokens_pending"] == 0
        unused = large["shadow_tokens_computed"] - large["shadow_tokens_used"]
        assert large["shadow_tokens_wasted"] == unused


async def test_the_length_of_a_history_on_another_model_is_an_estimate_until_it_is_known() -> None:
    async with a_coordinator(COLOCATED) as rig:
        await rig.chat(a_chat(WORDS), x_session_id="s")
        await rig.chat(a_chat("short", model="large"), x_session_id="s")
        small = (await rig.client.get("/v1/sessions/s")).json()["summary"]["models"]["small"]
        assert small["history_exact"] is False
        assert 0 < small["history_tokens"] < 100, "the history is the last call's"
        assert small["p_warm_tokens"] <= small["history_tokens"]


async def test_sessions_are_listed_newest_first_and_page_by_page() -> None:
    async with a_coordinator(COLOCATED) as rig:
        for name in ("a", "b", "c", "a"):
            await rig.chat(a_chat(), x_session_id=name)
        first = (await rig.client.get("/v1/sessions?limit=2")).json()
        assert [row["session_id"] for row in first["data"]] == ["a", "c"]
        assert (first["total"], first["offset"], first["limit"]) == (3, 0, 2)
        rest = (await rig.client.get("/v1/sessions?limit=2&offset=2")).json()
        assert [row["session_id"] for row in rest["data"]] == ["b"]


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "offset=-1", "limit=many"])
async def test_a_page_outside_the_limits_is_refused_by_name(query: str) -> None:
    async with a_coordinator(COLOCATED) as rig:
        reply = await rig.client.get(f"/v1/sessions?{query}")
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == query.partition("=")[0]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/sessions/s"),
        ("DELETE", "/v1/sessions/s"),
        ("POST", "/v1/sessions/s/finish"),
        ("POST", "/finish_session?session_id=s"),
    ],
)
async def test_anothers_session_and_none_at_all_are_answered_alike(method: str, path: str) -> None:
    async with a_coordinator(COLOCATED) as rig:
        before = await rig.client.request(method, path, headers=YOURS)
        await rig.client.post("/v1/chat/completions", json=a_chat(session_id="s"), headers=MINE)
        after = await rig.client.request(method, path, headers=YOURS)
        assert (before.status_code, before.content) == (after.status_code, after.content)
        assert after.status_code == 404
        assert (await rig.client.get("/v1/sessions", headers=YOURS)).json()["total"] == 0
        assert (await rig.client.get("/v1/sessions/s", headers=MINE)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"), [("DELETE", "/v1/sessions/a/b"), ("POST", "/v1/sessions/a/b/finish")]
)
async def test_a_finished_session_is_forgotten(method: str, path: str) -> None:
    async with a_coordinator(COLOCATED) as rig:
        await rig.chat(a_chat(), x_session_id="a/b")
        reply = await rig.client.request(method, path)
        assert reply.json() == {"session_id": "a/b", "calls": 1, "finished": True}
        assert ("finished", "a/b", "") in rig.hooks.events
        assert (await rig.client.get("/v1/sessions/a/b")).status_code == 404


async def test_a_page_of_one_tenant_costs_nothing_for_the_sessions_of_others() -> None:
    store = MemoryStore(ttl_s=60, max_sessions=1000, clock=lambda: 1.0)
    for number in range(100):
        await store.get_or_create(f"t{number % 4}", f"s{number}", CallKind.CHAT)
    page = await store.page("t1", 1, 3)
    assert [session.id for session in page.sessions] == ["s93", "s89", "s85"]
    assert page.total == 25
    for number in range(100):
        await store.remove(f"t{number % 4}", f"s{number}")
    assert not store._by_tenant, "nothing is left of a tenant without sessions"


async def test_the_pages_of_everybody_go_from_newest_to_oldest() -> None:
    now_s = iter(range(100))
    store = MemoryStore(ttl_s=60, max_sessions=1000, clock=lambda: float(next(now_s)))
    await store.get_or_create("t", "a", CallKind.CHAT)
    unnamed = await store.extend("u", CallKind.CHAT, [b"1"])
    await store.get_or_create("t", "c", CallKind.CHAT)
    page = await store.page(None, 0, 10)
    assert [session.id for session in page.sessions] == ["c", unnamed.id, "a"]
