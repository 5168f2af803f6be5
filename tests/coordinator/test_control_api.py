"""Models, readiness, metrics, session records."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.marks import read_marks
from policy.vocabulary import RequestClass
from tests.coordinator.call_rig import (
    COLOCATED,
    PD,
    TEXT,
    TWO_PD,
    a_chat,
    a_coordinator,
    a_turn,
    until,
)

if TYPE_CHECKING:
    from bench.fake_engine import FakeEngine
    from tests.coordinator.call_rig import Rig

WORDS = " ".join(f"w{at}" for at in range(300))


async def test_models_lists_every_model_and_auto() -> None:
    async with a_coordinator(TWO_PD) as rig:
        models = (await rig.client.get("/v1/models")).json()
        assert [card["id"] for card in models["data"]] == ["small", "large", "auto"]


async def test_ready_means_that_every_model_answered_through_p_and_d() -> None:
    async with a_coordinator(TWO_PD) as rig:
        reply = await rig.client.get("/ready")
        assert reply.status_code == 200
        assert reply.json()["models"]["large"] == {"ready": True, "why_not": None, "probes": 1}
        for model in ("small", "large"):
            (prefill,) = rig.engines[f"{model}-p"].generating()
            (decode,) = rig.engines[f"{model}-d"].generating()
            assert decode.body["kv_transfer_params"]["do_remote_prefill"] is True
            assert decode.body["max_tokens"] == 1
            assert len(decode.prompt_ids) > 32, "more than one block moved"
            assert prefill.body["cache_salt"] == decode.body["cache_salt"]


async def test_not_ready_says_which_model_and_why_and_recovers() -> None:
    def no_connector(engines: dict[str, FakeEngine]) -> None:
        engines["large-p"].faults.forget_handoff()

    async with a_coordinator(TWO_PD, ready=False, prepare=no_connector) as rig:
        health = rig.app.state.health
        await until(lambda: health.probes["small"].passed, "small is ready")
        await until(lambda: health.probes["large"].attempts >= 2, "the probe is repeated")
        reply = await rig.client.get("/ready")
        assert reply.status_code == 503
        assert reply.json()["models"]["small"]["ready"] is True
        assert "hand-off" in reply.json()["models"]["large"]["why_not"]
        rig.engines["large-p"].faults.forget_handoff(is_missing=False)
        await until(lambda: not health.not_ready(), "large recovers")
        assert (await rig.client.get("/ready")).status_code == 200


async def test_engines_that_are_not_up_yet_are_found_when_they_are() -> None:
    def asleep(engines: dict[str, FakeEngine]) -> None:
        engines["small-d"].faults.freeze()

    limits = {"probe_interval_s": 0.05}
    async with a_coordinator(PD, ready=False, prepare=asleep, limits=limits) as rig:
        reply = await rig.chat(a_chat())
        assert reply.status_code == 503
        assert int(reply.headers["retry-after"]) >= 1
        assert "small-d" in (await rig.client.get("/ready")).json()["models"]["small"]["why_not"]
        rig.engines["small-d"].faults.thaw()
        await until(lambda: not rig.app.state.health.not_ready(), "ready")
        assert (await rig.chat(a_chat())).status_code == 200


@pytest.mark.parametrize("role", ["p", "d"])
async def test_a_dead_instance_makes_its_model_not_ready(role: str) -> None:
    async with a_coordinator(TWO_PD) as rig:
        rig.engines[f"small-{role}"].faults.kill()
        await until(lambda: rig.app.state.health.not_ready(), "found dead")
        reply = await rig.client.get("/ready")
        assert reply.status_code == 503
        assert f"small-{role}" in reply.json()["models"]["small"]["why_not"]
        assert reply.json()["models"]["large"]["ready"] is True


async def test_one_silent_probe_takes_nobody_out() -> None:
    async with a_coordinator(PD, limits={"probe_interval_s": 0.05}) as rig:
        instance = rig.app.state.cluster.instances["small-p"]
        rig.engines["small-p"].faults.freeze()
        await until(lambda: instance.silent_probes == 1, "missed one")
        assert instance.healthy
        rig.engines["small-p"].faults.thaw()
        await until(lambda: instance.silent_probes == 0, "answered again")
        assert instance.healthy


async def test_a_frozen_instance_is_found_by_its_probe() -> None:
    async with a_coordinator(PD, limits={"probe_interval_s": 0.05}) as rig:
        rig.engines["small-p"].faults.freeze()
        await until(lambda: not rig.app.state.cluster.instances["small-p"].healthy, "found")
        assert (await rig.chat(a_chat())).status_code == 200, "D computes the prompt"
        rig.engines["small-p"].faults.thaw()
        await until(lambda: rig.app.state.cluster.instances["small-p"].healthy, "recovered")


async def test_a_sessions_record_names_every_call() -> None:
    async with a_coordinator(TWO_PD) as rig:
        await rig.chat(a_chat(WORDS), x_session_id="s")
        await rig.chat(a_chat(WORDS, model="large", stream=True), x_session_id="s")
        session = (await rig.client.get("/v1/sessions/s")).json()
        assert session["session_id"] == "s"
        assert session["model"] == "large"
        first, second = session["calls"]
        assert first["call"] == 1
        assert first["is_switch"] is False
        assert second["is_switch"] is True
        assert second["model"] == "large"
        assert first["prompt_tokens"] > 300
        assert first["output_tokens"] == 4
        assert second["p_instance"] == "large-p"
        assert second["d_instance"] == "large-d"
        assert second["finish_reason"] == "length"
        assert second["error"] is None
        assert first["ttft_ms"] is None, "a whole answer has no first token of its own"
        assert 0 < second["ttft_ms"] <= second["e2el_ms"]
        assert set(session) == {
            "session_id",
            "model",
            "calls",
            "shadows",
            "shadow_work",
            "summary",
            "shadow_tokens_computed",
            "shadow_tokens_used",
            "shadow_tokens_wasted",
        }


async def test_cached_tokens_beyond_the_sessions_own_are_the_shadows() -> None:
    async with a_coordinator(TWO_PD) as rig:
        await rig.chat(a_chat(WORDS), x_session_id="s")
        (session,), _ = await rig.app.state.sessions.page("anonymous", 0, 10)
        warmth = session.warmth_of("large")
        warmth.prefill_instance, warmth.decode_instance = "large-p", "large-d"
        warmth.shadow_tokens, warmth.computed_tokens = 256, 256
        engine = rig.engines["large-p"]
        body = a_chat(WORDS, model="large")
        engine.cache.add(session.cache_salt, engine.prompt_ids("/v1/chat/completions", body))
        await rig.chat(body, x_session_id="s")
        shown = (await rig.client.get("/v1/sessions/s")).json()
        assert shown["calls"][1]["shadow_tokens"] == 256
        assert shown["shadow_tokens_used"] == 256
        assert shown["shadow_tokens_computed"] == 256
        assert warmth.own_tokens >= 288, "the call's own prefix from now on"
        assert warmth.shadow_tokens == 0


@pytest.mark.parametrize("layout", [TWO_PD, COLOCATED], ids=["pd", "colocated"])
async def test_a_switch_finds_what_the_shadow_flow_computed(layout: dict[str, Any]) -> None:
    async with a_coordinator(layout, shadow=True) as rig:
        messages = a_turn(WORDS)
        reply = await rig.chat(a_chat(messages=messages), x_session_id="s")
        messages.append(reply.json()["choices"][0]["message"])
        messages.append({"role": "user", "content": "go on"})
        (session,), _ = await rig.app.state.sessions.page("anonymous", 0, 10)
        await until(lambda: session.warmth_of("large").shadow_tokens >= 288, "large is warm")
        await rig.chat(a_chat(messages=messages, model="large"), x_session_id="s")
        shown = (await rig.client.get("/v1/sessions/s")).json()
        switch = shown["calls"][1]
        assert switch["is_switch"] is True
        assert switch["cached_tokens"] >= 288
        assert switch["shadow_tokens"] == switch["cached_tokens"]
        assert shown["shadow_tokens_used"] == switch["shadow_tokens"]
        assert shown["shadows"]["large"]["used_tokens"] == switch["shadow_tokens"]
        text = (await rig.client.get("/metrics")).text
        assert "shadowprefill_shadow_computed_tokens_total" in text


async def classes(rig: Rig, instance: str) -> list[RequestClass]:
    return [read_marks(call.body["vllm_xargs"]).request_class for call in rig.calls(instance)]


async def test_an_unnamed_session_is_normal_traffic_until_it_switches() -> None:
    async with a_coordinator(COLOCATED) as rig:
        await rig.chat(a_chat(messages=a_turn("a")))
        await rig.chat(a_chat(messages=a_turn("a", "b", "c"), model="large"))
        await rig.chat(a_chat(messages=a_turn("a", "b", "c", "d", "e"), model="large"))
        assert await classes(rig, "small-1") == [RequestClass.NORMAL]
        assert await classes(rig, "large-1") == [RequestClass.ROUTED] * 2


async def test_a_named_session_is_routed_while_its_shadow_is_on() -> None:
    async with a_coordinator(COLOCATED) as rig:
        for wish in (None, "off", None, "on"):
            headers = {} if wish is None else {"x_shadowprefill_shadow": wish}
            await rig.chat(a_chat(), x_session_id="s", **headers)
        routed, normal = RequestClass.ROUTED, RequestClass.NORMAL
        assert await classes(rig, "small-1") == [routed, normal, normal, routed]


@pytest.mark.parametrize("models", [{"large": {"shadow": False}}, None], ids=["one", "two"])
async def test_a_session_without_a_second_candidate_is_normal(models: dict | None) -> None:
    async with a_coordinator(COLOCATED, models=models) as rig:
        await rig.chat(a_chat(), x_session_id="s")
        expected = RequestClass.NORMAL if models else RequestClass.ROUTED
        assert await classes(rig, "small-1") == [expected]


async def test_plain_text_without_a_name_is_nobodys_session() -> None:
    async with a_coordinator(COLOCATED) as rig:
        await rig.client.post(TEXT, json={"model": "small", "prompt": "x"})
        assert await classes(rig, "small-1") == [RequestClass.NORMAL]
        assert (await rig.client.get("/v1/sessions")).json()["data"] == []


async def test_metrics_count_calls_tokens_legs_and_placements() -> None:
    async with a_coordinator(PD) as rig:
        await rig.chat(a_chat(WORDS), x_session_id="s")
        await rig.chat(a_chat(WORDS, stream=True), x_session_id="s")
        rig.engines["small-p"].faults.fail_next(500)
        await rig.chat(a_chat(), x_session_id="s")
        await rig.chat(a_chat(max_tokens=-1))
        rig.engines["small-p"].faults.fail_next(422)
        await rig.chat(a_chat())
        text = (await rig.client.get("/metrics")).text
        samples = {  # labels come in alphabetical order
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert samples["shadowprefill_calls_total", "normal", "small", "ok"] == 3
        assert samples["shadowprefill_calls_total", "normal", "small", "rejected"] == 1
        assert samples["shadowprefill_ttft_seconds_count", "normal", "small", "no"] == 1
        assert samples["shadowprefill_prompt_tokens_total", "small"] > 600
        assert samples["shadowprefill_cached_tokens_total", "small"] > 280
        assert samples["shadowprefill_legs_failed_total", "EngineFailed", "small-p", "prefill"] == 1
        assert samples["shadowprefill_legs_retried_total", "prefill"] == 1
        assert samples["shadowprefill_placements_total", "prefill", "small", "sticky"] >= 2
        assert samples["shadowprefill_calls_refused_total", "400"] == 1
        assert samples["shadowprefill_calls_in_flight",] == 0


async def test_a_hundred_calls_at_once_are_all_answered() -> None:
    async with a_coordinator(TWO_PD) as rig:
        calls = [
            rig.chat(a_chat(f"task {at}", stream=bool(at % 2), model=("small", "large")[at % 2]))
            for at in range(100)
        ]
        replies = await asyncio.gather(*calls)
        assert {reply.status_code for reply in replies} == {200}
        instances = rig.app.state.cluster.instances.values()
        assert all(not one.inflight_calls and not one.inflight_tokens for one in instances)
        assert all(engine.pinned_handoffs == 0 for engine in rig.engines.values())
