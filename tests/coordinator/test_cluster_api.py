"""Instances and the cluster as the control API shows them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.coordinator.call_rig import COLOCATED, TWO_PD, a_chat, a_coordinator, until


async def test_every_instance_is_listed_with_its_health() -> None:
    async with a_coordinator(TWO_PD) as rig:
        await rig.chat(a_chat())
        listed = (await rig.client.get("/v1/instances")).json()["data"]
        assert [row["name"] for row in listed] == list(TWO_PD)
        assert {row["state"] for row in listed} == {"healthy"}
        assert listed[0]["role"] == "prefill"
        assert listed[0]["inflight_calls"] == 0
        assert listed[0]["last_error"] is None
        rig.engines["large-d"].faults.kill()
        instance = rig.app.state.cluster.instances["large-d"]
        await until(lambda: not instance.healthy, "found dead")
        row = (await rig.client.get("/v1/instances/large-d")).json()
        assert (row["state"], row["healthy"]) == ("unhealthy", False)
        assert row["last_error"]


async def test_an_instance_that_let_a_call_time_out_is_suspect() -> None:
    async with a_coordinator(TWO_PD) as rig:
        cluster = rig.app.state.cluster
        cluster.timed_out(cluster.instances["small-p"], "silent")
        row = (await rig.client.get("/v1/instances/small-p")).json()
        assert (row["state"], row["failures"]) == ("suspect", 1)


async def test_an_unknown_instance_is_an_error_that_names_the_known_ones() -> None:
    async with a_coordinator(TWO_PD) as rig:
        reply = await rig.client.get("/v1/instances/nobody")
        assert reply.status_code == 404
        assert "small-p" in reply.json()["error"]["message"]


async def test_the_summary_counts_models_instances_sessions_and_shadow_work() -> None:
    async with a_coordinator(TWO_PD, shadow=True) as rig:
        await rig.chat(a_chat("words " * 300), x_session_id="s")
        shadow = rig.app.state.shadow
        await until(lambda: shadow.counters.pushed_tokens, "large is warm")
        await until(lambda: not shadow.running, "nothing runs any more")
        summary = (await rig.client.get("/v1/cluster")).json()
        assert summary["ready"] is True
        assert (summary["instances"], summary["healthy_instances"]) == (4, 4)
        assert summary["models"]["large"]["is_disaggregated"] is True
        assert summary["models"]["large"]["instances"] == 2
        assert (summary["sessions"], summary["calls_in_flight"]) == (1, 0)
        assert summary["shadow"]["computed_tokens"] == shadow.counters.computed_tokens > 0
        assert summary["uptime_s"] >= 0


async def test_the_openapi_page_knows_every_field() -> None:
    async with a_coordinator(TWO_PD) as rig:
        schemas = (await rig.client.get("/openapi.json")).json()["components"]["schemas"]
        for name in ("SessionList", "SessionDetail", "InstanceList", "ClusterSummary"):
            assert name in schemas
        assert "description" in schemas["ModelWarmth"]["properties"]["missing_tokens"]


async def test_the_configuration_in_force_is_shown_without_its_secrets() -> None:
    async with a_coordinator(TWO_PD, limits={"engine_secret": "between-us"}) as rig:
        reply = await rig.client.get("/v1/config")
        assert "between-us" not in reply.text
        config = reply.json()
        assert config["cluster"]["coordinator"]["engine_secret"] == "(hidden)"
        assert config["shadow"]["top_k"] == 4


async def test_shadow_parameters_change_for_engines_and_coordinator_together() -> None:
    async with a_coordinator(COLOCATED, shadow=True) as rig:
        body = {"changes": {"beta": 0.25, "top_k": 1}}
        reply = await rig.client.patch("/v1/config/shadow", json=body)
        assert reply.status_code == 200, reply.text
        changed = reply.json()
        assert (changed["shadow"]["beta"], changed["shadow"]["top_k"]) == (0.25, 1)
        assert {answer["instance"]: answer["applied"] for answer in changed["engines"]} == {
            "small-1": True,
            "large-1": True,
        }
        assert (await rig.client.get("/v1/config")).json()["shadow"]["top_k"] == 1


async def test_shadow_work_stops_and_starts_with_the_controller() -> None:
    async with a_coordinator(COLOCATED, shadow=True) as rig:
        shadow = rig.app.state.shadow
        for controller, works in (("off", False), ("harvest-slo", True)):
            body = {"changes": {"controller": controller}}
            await rig.client.patch("/v1/config/shadow", json=body)
            before = shadow.counters.jobs
            await rig.chat(a_chat("words " * 300), x_session_id=controller)
            await until(lambda: not shadow._feeds and not shadow._changed, "read")
            assert (shadow.counters.jobs > before) is works


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"beta": 2}, "shadow.beta"),
        ({"controller": "all"}, "shadow.controller"),
        ({"top_k": 0}, "shadow.top_k"),
        ({"top_k": "3"}, "shadow.top_k"),
        ({"n_min_tokens": 100_000}, "n_min_tokens"),
        ({"trace_path": "/etc/passwd.jsonl"}, "trace_path"),
        ({"segment_tokens": 64}, "cannot be changed"),
        ({}, "changes"),
    ],
)
async def test_a_wrong_change_is_refused_whole(changes: dict[str, Any], word: str) -> None:
    async with a_coordinator(COLOCATED, shadow=True) as rig:
        before = (await rig.client.get("/v1/config")).json()
        body = {"changes": changes and changes | {"idle_age_s": 9}}
        reply = await rig.client.patch("/v1/config/shadow", json=body)
        assert reply.status_code == 400
        assert word in reply.json()["error"]["message"]
        assert (await rig.client.get("/v1/config")).json() == before
        assert not rig.engines["small-1"].generating()[1:], "nothing was sent"
