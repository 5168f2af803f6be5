"""What a switch costs now, as a router can ask for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.coordinator.call_rig import COLOCATED, TWO_PD, a_chat, a_coordinator, until

if TYPE_CHECKING:
    from tests.coordinator.call_rig import Rig

WORDS = " ".join(f"w{at}" for at in range(300))
PRICE = {"input_per_million_tokens": 100.0}
PRICED = {"large": {"price": PRICE}, "small": {"price": PRICE | {"cached_input_share": 0.5}}}


async def quotes(rig: Rig, query: str = "", **headers: str) -> dict[str, Any]:
    reply = await rig.client.get(f"/v1/sessions/s/quote{query}", headers=headers)
    assert reply.status_code == 200, reply.text
    return {row["model"]: row for row in reply.json()["quotes"]}


@pytest.mark.parametrize("layout", [TWO_PD, COLOCATED], ids=["pd", "colocated"])
async def test_staying_is_cheaper_than_a_cold_switch(layout: dict[str, Any]) -> None:
    async with a_coordinator(layout, models=PRICED) as rig:
        await rig.chat(a_chat(WORDS), x_session_id="s")
        rows = await quotes(rig)
        small, large = rows["small"], rows["large"]
        assert (small["is_current"], large["is_current"]) == (True, False)
        assert small["cached_tokens"] >= 288
        assert small["cached_tokens"] + small["uncached_tokens"] == small["prompt_tokens"]
        assert (large["cached_tokens"], large["available"]) == (0, True)
        assert 0 < small["estimated_ttft_ms"] < large["estimated_ttft_ms"]
        assert large["input_price"] == pytest.approx(large["uncached_tokens"] * 1e-4)
        cached_price = small["cached_tokens"] * 0.5e-4
        assert small["input_price"] == pytest.approx(small["uncached_tokens"] * 1e-4 + cached_price)


async def test_a_shadow_makes_the_switch_cheap() -> None:
    async with a_coordinator(COLOCATED, models=PRICED, shadow=True) as rig:
        await rig.chat(a_chat(WORDS), x_session_id="s")
        (session,), _ = await rig.app.state.sessions.page("anonymous", 0, 10)
        await until(lambda: session.peek("large").shadow_tokens >= 288, "large is warm")
        large = (await quotes(rig))["large"]
        assert large["prompt_exact"] is True
        assert large["cached_tokens"] >= 288
        assert large["uncached_tokens"] < 64


async def test_what_is_new_in_the_next_prompt_is_never_cached() -> None:
    async with a_coordinator(COLOCATED) as rig:
        await rig.chat(a_chat(WORDS), x_session_id="s")
        before, after = (
            (await quotes(rig))["small"],
            (await quotes(rig, "?new_tokens=500"))["small"],
        )
        assert after["prompt_tokens"] == before["prompt_tokens"] + 500
        assert after["cached_tokens"] == before["cached_tokens"]
        assert after["input_price"] is None


async def test_a_model_that_nobody_serves_is_quoted_as_such() -> None:
    async with a_coordinator(COLOCATED) as rig:
        await rig.chat(a_chat(WORDS), x_session_id="s")
        cluster = rig.app.state.cluster
        rig.engines["large-1"].faults.kill()
        await until(lambda: not cluster.instances["large-1"].healthy, "found dead")
        large = (await quotes(rig))["large"]
        assert (large["available"], large["estimated_ttft_ms"]) == (False, None)
        assert "large" in large["why_not"]


async def test_a_quote_tells_nothing_about_another_tenants_session_of_the_same_name() -> None:
    mine, yours = {"authorization": "Bearer mine"}, {"authorization": "Bearer yours"}
    async with a_coordinator(COLOCATED, models=PRICED) as rig:
        body = a_chat("hello", session_id="s")
        await rig.client.post("/v1/chat/completions", json=body, headers=mine)
        before = await quotes(rig, **mine)
        await rig.client.post(
            "/v1/chat/completions", json=a_chat(WORDS, session_id="s"), headers=yours
        )
        for model in ("small", "large"):
            await rig.client.post(
                "/v1/chat/completions", json=body | {"model": model}, headers=yours
            )
        assert (await quotes(rig, **mine))["small"] == before["small"]
        unknown = {"authorization": "Bearer third"}
        reply = await rig.client.get("/v1/sessions/s/quote", headers=unknown)
        assert reply.status_code == 404


async def test_a_quote_binds_nothing() -> None:
    async with a_coordinator(TWO_PD) as rig:
        await rig.chat(a_chat(WORDS), x_session_id="s")
        await quotes(rig)
        detail = (await rig.client.get("/v1/sessions/s")).json()
        assert list(detail["summary"]["models"]) == ["small"]
