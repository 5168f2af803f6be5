"""Instances come and go while calls run; sessions move only if they have to."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from bench.fake_engine import create_app, running
from coordinator.errors import UpstreamRefused
from coordinator.upstreams import checked_upstream
from tests.coordinator.call_rig import COLOCATED, PD, TWO_PD, a_chat, a_coordinator, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

    from bench.fake_engine import FakeEngine
    from tests.coordinator.call_rig import Rig

ALLOWED = {"upstreams": ["127.0.0.0/8"]}


@asynccontextmanager
async def a_newcomer(**settings: Any) -> AsyncIterator[tuple[FakeEngine, str]]:
    app = create_app(**{"model": "small"} | settings)
    async with running(app) as url:
        yield app.state.engine, url


async def register(rig: Rig, url: str, **fields: Any) -> httpx.Response:
    body = {"name": "small-2", "model": "small", "role": "colocated", "url": url} | fields
    return await rig.client.post("/v1/instances", json=body)


async def drain(rig: Rig, name: str, **fields: Any) -> httpx.Response:
    return await rig.client.post(f"/v1/instances/{name}/drain", json=fields)


async def where(rig: Rig, session: str) -> str:
    reply = await rig.chat(a_chat("hello " * 200), x_session_id=session)
    assert reply.status_code == 200, reply.text
    return reply.headers["x-shadowprefill-d-instance"]


async def test_a_registered_instance_gets_calls_and_no_session_moves_to_it() -> None:
    async with a_coordinator(COLOCATED, limits=ALLOWED) as rig, a_newcomer() as (_, url):
        old = [f"old-{number}" for number in range(20)]
        for session in old:
            assert await where(rig, session) == "small-1"
        reply = await register(rig, url)
        assert reply.status_code == 201
        assert (reply.json()["state"], reply.json()["registered"]) == ("healthy", True)
        assert {await where(rig, session) for session in old} == {"small-1"}
        new = {await where(rig, f"new-{number}") for number in range(20)}
        assert new == {"small-1", "small-2"}
        config = (await rig.client.get("/v1/config")).json()
        assert "small-2" in config["cluster"]["instances"]


async def test_the_series_of_a_registered_instance_are_where_it_is() -> None:
    allowed = {"upstreams": ["localhost"]}
    async with a_coordinator(COLOCATED, limits=allowed) as rig, a_newcomer() as (_, url):
        reply = await register(rig, url.replace("127.0.0.1", "localhost"), metrics_port=9100)
        assert reply.json()["metrics_url"] == "http://localhost:9100/metrics"


async def test_series_at_a_port_that_is_not_allowed_are_refused() -> None:
    async with a_newcomer() as (_, url):
        allowed = {"upstreams": [url.removeprefix("http://")]}
        async with a_coordinator(COLOCATED, limits=allowed) as rig:
            reply = await register(rig, url, metrics_port=9100)
            assert reply.status_code == 403
            assert "http://127.0.0.1:9100" in reply.json()["error"]["message"]
            assert (await rig.client.get("/v1/instances/small-2")).status_code == 404


async def test_a_removed_instance_moves_its_own_sessions_only() -> None:
    async with a_coordinator(COLOCATED, limits=ALLOWED) as rig, a_newcomer() as (_, url):
        await register(rig, url)
        before = {f"s-{number}": await where(rig, f"s-{number}") for number in range(20)}
        assert set(before.values()) == {"small-1", "small-2"}
        assert (await drain(rig, "small-2")).json()["state"] == "drained"
        assert (await rig.client.delete("/v1/instances/small-2")).status_code == 200
        for session in before:
            assert await where(rig, session) == "small-1"
        assert (await rig.client.get("/v1/instances/small-2")).status_code == 404


async def test_draining_lets_running_calls_end_and_a_restart_fails_none() -> None:
    slow = {"delay_s": 0.1}
    async with (
        a_coordinator(COLOCATED, limits=ALLOWED, engine=slow) as rig,
        a_newcomer(**slow) as (engine, url),
    ):
        await register(rig, url)
        calls = [asyncio.create_task(where(rig, f"s-{number}")) for number in range(12)]
        await until(lambda: engine.running, "some run on it")
        row = (await drain(rig, "small-2")).json()
        assert row["state"] == "draining"
        assert (await rig.client.delete("/v1/instances/small-2")).status_code == 409
        cluster = rig.app.state.cluster
        await until(lambda: not cluster.instances["small-2"].inflight_calls, "drained")
        engine.faults.kill()
        await asyncio.gather(*calls)
        more = {await where(rig, f"s-{number}") for number in range(12)}
        assert more == {"small-1"}


async def test_a_drained_instance_can_take_calls_again() -> None:
    async with a_coordinator(COLOCATED, limits=ALLOWED) as rig, a_newcomer() as (_, url):
        await register(rig, url)
        await drain(rig, "small-1")
        assert await where(rig, "a") == "small-2"
        await drain(rig, "small-1", draining=False)
        assert {await where(rig, f"n-{number}") for number in range(20)} > {"small-1"}


@pytest.mark.parametrize("name", ["small-d", "small-1"])
async def test_the_last_instance_that_a_model_needs_is_not_drained_by_mistake(name: str) -> None:
    layout = TWO_PD if name == "small-d" else COLOCATED
    async with a_coordinator(layout) as rig:
        reply = await drain(rig, name)
        assert reply.status_code == 409
        assert "force" in reply.json()["error"]["message"]
        assert (await drain(rig, name, force=True)).status_code == 200
        # Who waits for its calls asks again; that takes nothing more away.
        assert (await drain(rig, name)).status_code == 200
        refused = await rig.chat(a_chat())
        assert refused.status_code == 503
        assert (await rig.client.get("/ready")).status_code == 503
        assert (await rig.client.delete(f"/v1/instances/{name}")).status_code == 409


async def test_without_its_last_p_a_model_is_served_by_d_alone() -> None:
    async with a_coordinator(TWO_PD) as rig:
        assert (await drain(rig, "small-p")).status_code == 200
        assert (await rig.chat(a_chat())).status_code == 200
        assert not rig.calls("small-p")


async def test_an_engine_of_another_model_gets_no_call() -> None:
    async with (
        a_coordinator(COLOCATED, limits=ALLOWED) as rig,
        a_newcomer(model="other") as (engine, url),
    ):
        row = (await register(rig, url)).json()
        assert row["healthy"] is False
        assert "serves ['other'], not 'small'" in row["last_error"]
        for number in range(10):
            await where(rig, f"s-{number}")
        assert not engine.generating()


@pytest.mark.parametrize(
    ("fields", "status", "word"),
    [
        ({"url": "http://169.254.169.254:80"}, 403, "coordinator.upstreams"),
        ({"url": "http://127.0.0.1:9/path"}, 403, "nothing else"),
        ({"name": "small-1"}, 409, "taken"),
        ({"name": "a b"}, 400, "must match"),
        ({"model": "nobody"}, 400, "nobody"),
        ({"role": "prefill", "kv_port": 7001}, 400, "colocated or disaggregated"),
        ({"role": "prefill"}, 400, "kv_port"),
        ({"role": "boss"}, 400, "role"),
        ({"more": 1}, 400, "more"),
    ],
)
async def test_what_cannot_be_registered_is_refused_with_its_reason(
    fields: dict[str, Any], status: int, word: str
) -> None:
    async with a_coordinator(COLOCATED, limits=ALLOWED) as rig:
        reply = await register(rig, **{"url": "http://127.0.0.1:9"} | fields)
        assert reply.status_code == status, reply.text
        error = reply.json()["error"]
        assert word in f"{error['message']} {error['param']}"
        assert len(rig.app.state.cluster.instances) == 2


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://gpu-7:8000", ["gpu-7"]),
        ("http://gpu-7:8000", ["gpu-7:8000"]),
        ("https://gpu-7", ["gpu-7:443"]),
        ("http://10.1.2.3:8000", ["10.0.0.0/8"]),
        ("http://[fd00::7]:8000", ["fd00::/16"]),
    ],
)
def test_listed_upstreams_are_allowed(url: str, allowed: list[str]) -> None:
    assert checked_upstream(url, allowed) in (443, 8000)


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://gpu-7:8000", []),
        ("http://gpu-7:8001", ["gpu-7:8000"]),
        ("http://gpu-77:8000", ["gpu-7"]),
        ("http://gpu-7.evil.example:8000", ["gpu-7"]),
        ("http://gpu-7@evil.example:8000", ["gpu-7", "gpu-7@evil.example"]),
        ("http://11.0.0.1:8000", ["10.0.0.0/8"]),
        ("http://10.evil.example:8000", ["10.0.0.0/8"]),
        ("http://[::ffff:10.0.0.1]:8000", ["10.0.0.0/8"]),
        ("ftp://gpu-7:8000", ["gpu-7"]),
        ("http://gpu-7:8000/v1?x", ["gpu-7"]),
        ("http://gpu-7:80 00", ["gpu-7"]),
        ("gpu-7:8000", ["gpu-7"]),
        ("http://gpu-7:99999", ["gpu-7"]),
    ],
)
def test_everything_else_is_not(url: str, allowed: list[str]) -> None:
    with pytest.raises(UpstreamRefused):
        checked_upstream(url, allowed)


HOSTILE = {
    "x-prefiller-host-port": "evil.example:1",
    "x-data-parallel-host": "evil.example",
    "x-forwarded-host": "evil.example",
    "host": "evil.example",
}


async def test_no_header_from_outside_names_a_host() -> None:
    async with a_coordinator(TWO_PD) as rig:
        for name, value in HOSTILE.items():
            reply = await rig.client.post(
                "/v1/chat/completions", json=a_chat(), headers={name: value}
            )
            assert reply.status_code == 200
        for call in rig.all_calls():
            assert "evil" not in str(call)


async def legs_of(rig: Rig, session: str) -> tuple[str, str]:
    """P and D of the session's next call."""
    reply = await rig.chat(a_chat("hello " * 200), x_session_id=session)
    assert reply.status_code == 200, reply.text
    names = ("x-shadowprefill-p-instance", "x-shadowprefill-d-instance")
    return reply.headers[names[0]], reply.headers[names[1]]


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_leg_that_comes_or_goes_moves_only_what_was_on_it(role: str) -> None:
    """Three of one role: sessions on the two that stay keep both of their legs."""
    at = ("prefill", "decode").index(role)
    three = PD | {f"more-{number}": ("small", role) for number in range(2)}
    newest = {"name": "newest", "role": role, "kv_port": 9999}
    async with a_coordinator(three, limits=ALLOWED) as rig, a_newcomer(role=role) as (_, url):
        before = {f"s-{number}": await legs_of(rig, f"s-{number}") for number in range(30)}
        assert len({legs[at] for legs in before.values()}) == 3
        assert (await register(rig, url, **newest)).status_code == 201
        assert {name: await legs_of(rig, name) for name in before} == before
        assert (await drain(rig, "more-0")).json()["state"] == "drained"
        assert (await rig.client.delete("/v1/instances/more-0")).status_code == 200
        after = {name: await legs_of(rig, name) for name in before}
        for name, legs in before.items():
            if legs[at] == "more-0":
                assert after[name][1 - at] == legs[1 - at], "the other leg stays"
                assert after[name][at] != "more-0"
            else:
                assert after[name] == legs
