"""Clients that leave in the middle of a disaggregated call: P keeps nothing for them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from coordinator.orphans import NO_MODEL
from coordinator.wire import Wire
from tests.coordinator.call_rig import CHAT, PD, TEXT, a_chat, a_coordinator, until

if TYPE_CHECKING:
    from collections import deque

    from bench.fake_engine import RecordedRequest
    from coordinator.connection import Connection
    from coordinator.wire import Origin
    from tests.coordinator.call_rig import Rig

A_TEXT = {"model": "small", "prompt": "hello there", "max_tokens": 4}


async def leave(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def start(rig: Rig, path: str, body: dict[str, Any]) -> asyncio.Task[Any]:
    return asyncio.create_task(rig.client.post(path, json=body))


def given_back(rig: Rig) -> list[RecordedRequest]:
    return [one for one in rig.engines["small-d"].requests if one.body.get("model") == NO_MODEL]


async def served_as_ever(rig: Rig) -> None:
    assert (await rig.chat(a_chat())).status_code == 200
    p, d = rig.engines["small-p"], rig.engines["small-d"]
    assert p.pinned_handoffs == 0
    assert d.refused_handoffs == 0
    assert all(one.failures == 0 for one in rig.app.state.cluster.instances.values())


@pytest.mark.parametrize(("path", "body"), [(CHAT, a_chat()), (TEXT, A_TEXT)], ids=["chat", "text"])
async def test_a_p_leg_whose_client_left_is_aborted_by_its_id(
    path: str, body: dict[str, Any]
) -> None:
    async with a_coordinator(PD) as rig:
        p = rig.engines["small-p"]
        p.faults.hang()
        task = start(rig, path, body)
        await until(lambda: p.running, "the P leg runs")
        await leave(task)
        await until(lambda: p.cancelled == 1 and not p.running, "the P leg is aborted")
        p.faults.release()
        assert not given_back(rig), "nothing was handed over"
        await served_as_ever(rig)


async def test_what_p_had_done_when_its_client_left_is_given_back() -> None:
    async with a_coordinator(PD) as rig:
        p = rig.engines["small-p"]
        p.takes_aborts = False
        p.faults.hang()
        task = start(rig, CHAT, a_chat())
        await until(lambda: p.running, "the P leg runs")
        await leave(task)
        p.faults.release()
        await until(lambda: p.pinned_handoffs == 0 and given_back(rig), "the hand-off is back")
        assert len(rig.calls("small-d")) == len(given_back(rig)) == 1, "and D computes nothing"
        metrics = rig.app.state.metrics
        returned = b"shadowprefill_handoffs_returned_total 1.0"
        await until(lambda: returned in metrics.exposition(), "it is counted")
        await served_as_ever(rig)


async def test_a_hand_off_that_was_not_sent_to_d_yet_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect, blocked = Wire._connect, asyncio.Event()
    async with a_coordinator(PD) as rig:
        d_url = rig.app.state.cluster.instances["small-d"].url

        async def connect_slowly(self: Wire, origin: Origin, pool: deque[Connection]) -> Connection:
            is_first = d_url.endswith(f":{origin.port}") and rig.calls("small-p")
            if is_first and not blocked.is_set():
                blocked.set()
                await asyncio.sleep(60)
            return await connect(self, origin, pool)

        monkeypatch.setattr(Wire, "_idle", lambda self, pool: None)
        monkeypatch.setattr(Wire, "_connect", connect_slowly)
        task = start(rig, CHAT, a_chat())
        await blocked.wait()
        assert rig.engines["small-p"].pinned_handoffs == 1
        await leave(task)
        await until(lambda: rig.engines["small-p"].pinned_handoffs == 0, "the hand-off is back")
        assert len(given_back(rig)) == 1
        await served_as_ever(rig)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_hand_off_that_d_was_sent_is_d_s_own_and_never_given_back(stream: bool) -> None:
    async with a_coordinator(PD) as rig:
        p, d = rig.engines["small-p"], rig.engines["small-d"]
        d.faults.hang()
        task = start(rig, CHAT, a_chat(stream=stream))
        await until(lambda: d.running, "the D leg runs")
        await leave(task)
        await until(lambda: d.cancelled == 1, "the D leg is closed")
        d.faults.release()
        assert not given_back(rig), "D may be reading it"
        assert p.pinned_handoffs == 1, "until its lease ends: this fake D tells nobody"


async def test_a_p_that_does_not_answer_any_more_is_left_to_the_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("coordinator.orphans.LET_GO_S", 0.05)
    async with a_coordinator(PD) as rig:
        p = rig.engines["small-p"]
        p.faults.hang()
        task = start(rig, CHAT, a_chat())
        await until(lambda: p.running, "the P leg runs")
        p.takes_aborts = False
        await leave(task)
        await until(lambda: p.cancelled == 1, "the connection was given up")
        p.faults.release()
        await served_as_ever(rig)


async def test_stopping_waits_for_no_orphan() -> None:
    async with a_coordinator(PD) as rig:
        p = rig.engines["small-p"]
        p.takes_aborts = False
        p.faults.hang()
        task = start(rig, CHAT, a_chat())
        await until(lambda: p.running, "the P leg runs")
        await leave(task)
        assert p.running == 1
