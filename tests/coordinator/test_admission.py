"""How many calls run and wait, per key and of everybody; and what the others are told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from coordinator.admission import Lane
from coordinator.door_errors import TooManyCalls
from tests.coordinator.call_rig import COLOCATED, a_chat, a_coordinator, until
from tests.coordinator.test_clients import CHAT, of, some_keys

if TYPE_CHECKING:
    import httpx

    from tests.coordinator.call_rig import Rig


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_calls_take_turns_in_the_order_of_their_coming() -> None:
    lane, ended = Lane(1, 10), list[int]()

    async def call(number: int) -> None:
        await lane.enter(10, "")
        await asyncio.sleep(0)
        ended.append(number)
        lane.leave()

    await asyncio.gather(*map(call, range(5)))
    assert ended == [0, 1, 2, 3, 4]
    assert lane.is_idle


async def test_a_newcomer_does_not_overtake_who_waits() -> None:
    lane = Lane(1, 10)
    await lane.enter(10, "")
    waiting = asyncio.create_task(lane.enter(10, ""))
    await settled()
    lane.leave()
    newcomer = asyncio.create_task(lane.enter(10, ""))
    await settled()
    assert waiting.done()
    assert not newcomer.done()
    lane.leave()
    await newcomer
    lane.leave()
    assert lane.is_idle


async def test_a_full_queue_refuses_and_a_long_wait_ends() -> None:
    lane = Lane(1, 1)
    await lane.enter(10, "")
    late = asyncio.create_task(lane.enter(0.01, "of key k"))
    await settled()
    with pytest.raises(TooManyCalls, match="1 wait"):
        await lane.enter(10, "of key k")
    with pytest.raises(TooManyCalls, match=r"this one for 0.01 s"):
        await late
    lane.leave()
    assert lane.is_idle


@pytest.mark.parametrize("is_granted", [False, True], ids=["waiting", "granted_meanwhile"])
async def test_whoever_leaves_the_queue_takes_no_slot_along(is_granted: bool) -> None:
    lane = Lane(1, 2)
    await lane.enter(10, "")
    leaver, next_one = (asyncio.create_task(lane.enter(10, "")) for _ in range(2))
    await settled()
    if is_granted:
        lane.leave()  # its turn, and in the same moment it is cancelled
        leaver.cancel()
    else:
        leaver.cancel()
        await settled()
        lane.leave()
    await asyncio.wait([leaver])
    await asyncio.wait_for(next_one, 1)
    assert lane.running == 1
    lane.leave()
    assert lane.is_idle


async def calls_at_once(rig: Rig, number: int, name: str = "alice") -> list[httpx.Response]:
    calls = [rig.client.post(CHAT, json=a_chat(), headers=of(name)) for _ in range(number)]
    return await asyncio.gather(*calls)


async def test_a_key_has_its_own_number_of_calls_and_no_more() -> None:
    keys = some_keys(concurrent_calls=2, queued_calls=1)
    async with a_coordinator(COLOCATED, keys=keys, engine={"delay_s": 0.2}) as rig:
        mine, others = await asyncio.gather(calls_at_once(rig, 5), calls_at_once(rig, 2, "carol"))
        assert sorted(reply.status_code for reply in mine) == [200, 200, 200, 429, 429]
        assert [reply.status_code for reply in others] == [200, 200]
        refused = next(reply for reply in mine if reply.status_code == 429)
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "too_many_calls"


async def test_a_rate_is_kept_and_the_refused_are_told_when_to_come() -> None:
    keys = some_keys(requests_per_minute=12)
    async with a_coordinator(COLOCATED, keys=keys) as rig:
        replies = await calls_at_once(rig, 4)
        assert sorted(reply.status_code for reply in replies) == [200, 200, 429, 429]
        refused = next(reply for reply in replies if reply.status_code == 429)
        assert 1 <= int(refused.headers["retry-after"]) <= 5
        assert "12 requests per minute" in refused.json()["error"]["message"]
        assert (await calls_at_once(rig, 1, "bob"))[0].status_code == 200


async def test_everybody_together_is_bounded_too() -> None:
    limits = {"max_calls": 1, "max_queued_calls": 1, "queue_wait_s": 5.0}
    async with a_coordinator(COLOCATED, limits=limits, engine={"delay_s": 0.1}) as rig:
        replies = await asyncio.gather(*(rig.chat(a_chat()) for _ in range(4)))
        assert sorted(reply.status_code for reply in replies) == [200, 200, 429, 429]
        text = (await rig.client.get("/metrics")).text
        assert 'shadowprefill_calls_refused_total{status="429"} 2.0' in text


async def test_a_call_that_fails_or_is_left_gives_its_slot_back() -> None:
    keys = some_keys(concurrent_calls=1, queued_calls=0)
    async with a_coordinator(COLOCATED, keys=keys, engine={"delay_s": 0.1}) as rig:
        admission = rig.app.hot.admission
        bad = await rig.client.post(CHAT, json=a_chat(model="nobody"), headers=of("alice"))
        assert bad.status_code == 404
        leaving = asyncio.create_task(rig.client.post(CHAT, json=a_chat(), headers=of("alice")))
        await until(lambda: admission._everybody.running == 1, "it runs")
        leaving.cancel()
        await until(lambda: admission._everybody.is_idle, "it has left")
        assert (await calls_at_once(rig, 1))[0].status_code == 200
