"""Calls for which D lacks so little that no P is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.coordinator.call_rig import PD, TWO_PD, a_chat, a_coordinator, a_turn

if TYPE_CHECKING:
    import httpx

    from tests.coordinator.call_rig import Rig

LONG = "one two three four " * 50
LIMIT = {"small": {"skip_prefill_tokens": 64, "bytes_per_token": 6.0}}


async def say(rig: Rig, *texts: str, **fields: Any) -> httpx.Response:
    return await rig.chat(a_chat(messages=a_turn(*texts), **fields), x_session_id="s")


def answer_of(reply: httpx.Response) -> str:
    return str(reply.json()["choices"][0]["message"]["content"])


async def placements(rig: Rig) -> str:
    return (await rig.client.get("/metrics")).text


async def test_a_short_prompt_is_computed_on_d_alone() -> None:
    async with a_coordinator(PD, models=LIMIT) as rig:
        reply = await say(rig, "hello there")
        assert reply.status_code == 200
        assert not rig.calls("small-p")
        (leg,) = rig.calls("small-d")
        assert "kv_transfer_params" not in leg.body
        assert reply.headers["x-shadowprefill-p-instance"] == "small-d"
        assert 'leg="prefill",model="small",reason="skipped_short"} 1.0' in await placements(rig)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_prompt_that_d_holds_but_for_a_little_is_computed_there(stream: bool) -> None:
    async with a_coordinator(PD, models=LIMIT) as rig:
        first = await say(rig, LONG)
        assert len(rig.calls("small-p")) == 1
        said = answer_of(first)
        reply = await say(rig, LONG, said, "go on", stream=stream)
        assert reply.status_code == 200
        assert len(rig.calls("small-p")) == 1, "D has the history and the answer"
        assert 'reason="skipped_held"} 1.0' in await placements(rig)
        row = (await rig.client.get("/v1/sessions/s")).json()["calls"][-1]
        assert row["cached_tokens"] > 190, "what D found in its own cache"
        assert row["p_instance"] == row["d_instance"] == "small-d"


async def test_a_prompt_with_much_that_is_new_goes_to_p() -> None:
    async with a_coordinator(PD, models=LIMIT) as rig:
        said = answer_of(await say(rig, LONG))
        await say(rig, LONG, said, LONG)
        assert len(rig.calls("small-p")) == 2
        assert "kv_transfer_params" in rig.calls("small-d")[-1].body


async def test_a_history_that_was_cut_goes_to_p() -> None:
    async with a_coordinator(PD, models=LIMIT) as rig:
        await say(rig, LONG)
        await say(rig, LONG[: len(LONG) * 3 // 4])
        assert len(rig.calls("small-p")) == 2, "nobody knows how much of it D holds"


async def test_without_a_limit_p_is_always_asked() -> None:
    async with a_coordinator(PD) as rig:
        said = answer_of(await say(rig, "hello there"))
        await say(rig, "hello there", said, "go on")
        assert len(rig.calls("small-p")) == 2


async def test_answers_are_the_same_with_and_without_p() -> None:
    texts = []
    for models in ({}, LIMIT):
        async with a_coordinator(PD, models=models) as rig:
            said = answer_of(await say(rig, LONG))
            texts.append((said, answer_of(await say(rig, LONG, said, "go on"))))
    assert texts[0] == texts[1]


async def test_what_a_shadow_pushed_to_d_counts_as_used_when_p_is_skipped() -> None:
    models = dict.fromkeys(("small", "large"), LIMIT["small"])
    async with a_coordinator(TWO_PD, models=models) as rig:
        said = answer_of(await say(rig, LONG))
        (session,) = (await rig.app.state.sessions.page(None, 0, 9)).sessions
        warmth = session.warmth_of("large")
        # As a shadow job leaves it: P computed the history and D pulled it.
        prompt = rig.calls("small-p")[-1].prompt_ids
        held = len(prompt) // 32 * 32
        rig.engines["large-d"].cache.add(session.cache_salt, prompt)
        warmth.prefill_instance, warmth.decode_instance = "large-p", "large-d"
        warmth.shadow_tokens = warmth.decode_tokens = warmth.computed_tokens = held
        warmth.rendered_call, warmth.covered_tokens = session.calls_total, len(prompt)
        await say(rig, LONG, said, "go on", model="large")
        assert not rig.calls("large-p")
        assert warmth.used_tokens > 0
        assert warmth.wasted_tokens + warmth.pending_tokens + warmth.used_tokens == held
