"""Engines that die, hang or lie, and clients that leave: a clear error or a correct answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.coordinator.call_rig import (
    CHAT,
    COLOCATED,
    PD,
    a_chat,
    a_coordinator,
    events_of,
    text_of,
    until,
)

if TYPE_CHECKING:
    from tests.coordinator.call_rig import Rig

SHORT = {"first_byte_timeout_s": 1.0, "stream_idle_timeout_s": 1.0}
"""For faults that end by a limit only. A busy machine must still serve an honest call within it."""
SHORT_WHOLE = {"answer_timeout_s": 1.0}
TWO_P = PD | {"small-p2": ("small", "prefill")}
TWO_D = PD | {"small-d2": ("small", "decode")}


def limits_for(fault: str, stream: bool = True) -> dict[str, Any]:
    return (SHORT if stream else SHORT_WHOLE) if fault == "hang" else {}


async def honest_text(rig: Rig, body: dict[str, Any]) -> str:
    """What one undisturbed call says."""
    reply = await rig.chat(body, x_session_id="s")
    return str(reply.json()["choices"][0]["message"]["content"])


def at_p(rig: Rig) -> str:
    """The P that the last call went to."""
    return next(name for name in ("small-p", "small-p2") if rig.calls(name))


async def start_stream(rig: Rig, **fields: Any) -> asyncio.Task[bytes]:
    async def run() -> bytes:
        return (await rig.chat(a_chat(stream=True, **fields))).content

    return asyncio.create_task(run())


# --- P


@pytest.mark.parametrize("fault", ["drop", "500", "no_handoff", "killed"])
async def test_another_p_takes_over_from_one_that_fails(fault: str) -> None:
    async with a_coordinator(TWO_P) as rig:
        said = await honest_text(rig, a_chat())  # P is sticky from here on
        first = at_p(rig)
        faults = rig.engines[first].faults
        match fault:
            case "drop":
                faults.drop_next(2)
            case "500":
                faults.fail_next(500)
            case "no_handoff":
                faults.forget_handoff()
            case "killed":
                faults.kill()
        reply = await rig.chat(a_chat(), x_session_id="s")
        assert reply.json()["choices"][0]["message"]["content"] == said
        assert reply.headers["x-shadowprefill-p-instance"] in ({"small-p", "small-p2"} - {first})


@pytest.mark.parametrize("fault", ["drop", "500", "no_handoff", "killed", "hang"])
async def test_d_computes_the_prompt_when_the_only_p_fails(fault: str) -> None:
    async with a_coordinator(PD, limits=limits_for(fault)) as rig:
        said = await honest_text(rig, a_chat())
        faults = rig.engines["small-p"].faults
        match fault:
            case "drop":
                faults.drop_next(2)
            case "500":
                faults.fail_next(500)
            case "no_handoff":
                faults.forget_handoff()
            case "killed":
                faults.kill()
            case "hang":
                faults.hang()
        reply = await rig.chat(a_chat())
        assert reply.json()["choices"][0]["message"]["content"] == said
        assert "kv_transfer_params" not in rig.calls("small-d")[-1].body
        assert reply.headers["x-shadowprefill-p-instance"] == "small-d"


async def test_a_dead_p_is_not_asked_again_until_a_probe_finds_it() -> None:
    async with a_coordinator(PD, limits={"probe_interval_s": 30}) as rig:
        rig.engines["small-p"].faults.kill()
        for _ in range(3):
            assert (await rig.chat(a_chat())).status_code == 200
        assert rig.app.state.cluster.instances["small-p"].failures == 1
        assert (await rig.client.get("/ready")).status_code == 503


# --- D before its first byte


@pytest.mark.parametrize(
    ("fault", "stream"),
    [("hang", True)] + [(f, s) for f in ("drop", "500", "killed", "silent") for s in (True, False)],
)
async def test_another_d_takes_over_before_the_first_byte(fault: str, stream: bool) -> None:
    async with a_coordinator(TWO_D, limits=limits_for(fault)) as rig:
        said = await honest_text(rig, a_chat())
        first = next(name for name in ("small-d", "small-d2") if rig.calls(name))
        faults = rig.engines[first].faults
        match fault:
            case "drop":
                faults.drop_next(2)
            case "500":
                faults.fail_next(500)
            case "killed":
                faults.kill()
            case "hang":
                faults.hang()
            case "silent":
                faults.die_mid_stream(0)
                if not stream:
                    faults.drop_next(2)
        reply = await rig.chat(a_chat(stream=stream), x_session_id="s")
        assert reply.status_code == 200
        if stream:
            events = events_of(reply.content)
            assert events[-1] == "[DONE]"
            assert text_of(events) == said
        else:
            assert reply.json()["choices"][0]["message"]["content"] == said
        second = ({"small-d", "small-d2"} - {first}).pop()
        assert reply.headers["x-shadowprefill-d-instance"] == second
        # A hand-off is consumed once; a D that refused the connection has not seen it.
        assert ("kv_transfer_params" in rig.calls(second)[-1].body) == (fault == "killed")


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(
    ("fault", "status"), [("drop", 502), ("500", 502), ("killed", 502), ("hang", 504)]
)
async def test_without_another_d_the_client_gets_a_clear_error(
    fault: str, status: int, stream: bool
) -> None:
    limits = limits_for(fault, stream) | {"probe_interval_s": 30}
    async with a_coordinator(PD, limits=limits) as rig:
        faults = rig.engines["small-d"].faults
        match fault:
            case "drop":
                faults.drop_next(2)
            case "500":
                faults.fail_next(500)
            case "killed":
                faults.kill()
            case "hang":
                faults.hang()
        reply = await rig.chat(a_chat(stream=stream))
        assert reply.status_code == status
        assert "small-d" in reply.json()["error"]["message"]
        faults.release()
        after = await rig.chat(a_chat())
        if fault == "killed":
            assert after.status_code == 503
            assert int(after.headers["retry-after"]) >= 1
        else:
            assert after.status_code == 200, "the next call works"


async def test_a_call_that_brings_engines_down_is_not_carried_through_all_of_them() -> None:
    layout = {f"e{at}": ("small", "colocated") for at in range(5)}
    async with a_coordinator(layout) as rig:
        for engine in rig.engines.values():
            engine.faults.drop_next(9)
        assert (await rig.chat(a_chat())).status_code == 502
        assert len(rig.all_calls()) == 4, "two instances, each also on a fresh connection"


@pytest.mark.parametrize("instance", ["small-p", "small-d"])
async def test_a_stale_connection_is_no_reason_to_fail_or_to_move(instance: str) -> None:
    async with a_coordinator(PD, limits={"probe_interval_s": 30}) as rig:
        said = await honest_text(rig, a_chat())
        rig.engines[instance].faults.drop_next()
        reply = await rig.chat(a_chat(), x_session_id="s")
        assert reply.json()["choices"][0]["message"]["content"] == said
        assert rig.app.state.cluster.instances[instance].failures == 0
        if instance == "small-d":
            assert "kv_transfer_params" not in rig.calls("small-d")[-1].body, "consumed, perhaps"
        else:
            assert reply.headers["x-shadowprefill-p-instance"] == "small-p"


# --- D after its first byte


@pytest.mark.parametrize("layout", [PD, COLOCATED], ids=["pd", "colocated"])
async def test_a_d_that_dies_mid_stream_gives_an_error_event_and_no_end(
    layout: dict[str, Any],
) -> None:
    async with a_coordinator(layout) as rig:
        d = "small-d" if "small-d" in layout else "small-1"
        rig.engines[d].faults.die_mid_stream(3)
        reply = await rig.chat(a_chat(stream=True, max_tokens=8), x_session_id="s")
        events = events_of(reply.content)
        assert "[DONE]" not in events
        assert d in events[-1]["error"]["message"]
        assert all(
            choice["finish_reason"] is None for event in events[:-1] for choice in event["choices"]
        )
        assert (await rig.client.get("/v1/sessions/s")).json()["calls"][0]["error"]
        assert rig.hooks.ok == [False]
        assert (await rig.chat(a_chat())).status_code == 200, "the next call works"


async def test_a_stream_that_ends_without_done_is_not_passed_off_as_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with a_coordinator(PD) as rig:
        monkeypatch.setattr("bench.fake_engine.replies.DONE", b"")
        events = events_of((await rig.chat(a_chat(stream=True))).content)
        assert "before [DONE]" in events[-1]["error"]["message"]
        assert "[DONE]" not in events
        assert rig.hooks.ok == [False]


async def test_a_d_that_falls_silent_mid_stream_ends_within_the_limit() -> None:
    async with a_coordinator(PD, limits=SHORT, engine={"chunk_delay_s": 0.01}) as rig:
        task = await start_stream(rig, max_tokens=8, ignore_eos=True)
        await until(lambda: rig.hooks.output or rig.calls("small-d"), "the D leg")
        rig.engines["small-d"].faults.freeze()
        events = events_of(await task)
        assert "sent nothing for 1 s" in events[-1]["error"]["message"]
        assert "[DONE]" not in events
        rig.engines["small-d"].faults.thaw()


# --- the client


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("instance", ["small-p", "small-d"])
async def test_a_client_that_leaves_cancels_the_leg_that_runs_and_nothing_else(
    instance: str, stream: bool
) -> None:
    async with a_coordinator(PD) as rig:
        other = asyncio.create_task(rig.chat(a_chat("stays")))
        rig.engines[instance].faults.hang()
        await until(lambda: rig.engines[instance].running == 1, "the other call's leg")
        engine = rig.engines[instance]
        task = asyncio.create_task(rig.chat(a_chat("leaves", stream=stream), x_session_id="s"))
        await until(lambda: engine.running == 2, "both legs run")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: engine.cancelled == 1, "the leg is cancelled")
        engine.faults.release()
        assert (await other).status_code == 200
        assert engine.cancelled == 1
        if instance == "small-p":
            assert len(rig.calls("small-d")) == 1, "D is not asked for a client that left"
        await until(lambda: len(rig.hooks.ok) == 2, "both calls ended")
        row = (await rig.client.get("/v1/sessions/s")).json()["calls"][0]
        assert row["error"] == "the client disconnected"
        instances = rig.app.state.cluster.instances.values()
        assert all(not one.inflight_calls and not one.inflight_tokens for one in instances)
        assert all(one.failures == 0 for one in instances), "no instance is to blame"


async def test_a_client_that_leaves_mid_stream_cancels_the_d_leg() -> None:
    async with a_coordinator(PD, engine={"chunk_delay_s": 0.02}) as rig:
        body = a_chat(stream=True, max_tokens=5000, ignore_eos=True)
        async with rig.client.stream("POST", CHAT, json=body) as reply:
            async for _ in reply.aiter_bytes():
                break
        await until(lambda: rig.engines["small-d"].cancelled == 1, "the D leg is cancelled")
        await until(lambda: rig.hooks.ok == [False], "the call ended")


async def test_sessions_and_health_answer_while_a_leg_hangs() -> None:
    async with a_coordinator(PD) as rig:
        rig.engines["small-p"].faults.hang()
        task = asyncio.create_task(rig.chat(a_chat()))
        await until(lambda: rig.engines["small-p"].running, "the leg runs")
        assert (await rig.client.get("/health")).status_code == 200
        rig.engines["small-p"].faults.release()
        assert (await task).status_code == 200
