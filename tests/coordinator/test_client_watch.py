"""A client that leaves is noticed under our own uvicorn protocol and under any other server."""

from __future__ import annotations

import asyncio

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from coordinator.client_watch import ClientWatch
from coordinator.hot_protocol import HotProtocol
from tests.coordinator.call_rig import COLOCATED, a_chat, a_coordinator, until


class AReply:
    is_over = False


@pytest.mark.parametrize("protocol", [HotProtocol, HttpToolsProtocol])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_a_client_that_leaves_cancels_its_call(
    protocol: type[HttpToolsProtocol], stream: bool
) -> None:
    async with a_coordinator(COLOCATED, protocol=protocol) as rig:
        engine = rig.engines["small-1"]
        engine.faults.hang()
        task = asyncio.create_task(rig.chat(a_chat(stream=stream)))
        await until(lambda: engine.running == 1, "the call runs")
        task.cancel()
        await until(lambda: engine.cancelled == 1, "the call is cancelled")
        engine.faults.release()
        assert (await rig.chat(a_chat())).status_code == 200


@pytest.mark.parametrize("protocol", [HotProtocol, HttpToolsProtocol])
async def test_a_client_that_closes_after_its_answer_cancels_nothing(
    protocol: type[HttpToolsProtocol],
) -> None:
    async with a_coordinator(COLOCATED, protocol=protocol) as rig:
        for _ in range(3):
            reader, writer = await asyncio.open_connection(
                *rig.url.removeprefix("http://").split(":")
            )
            body = b'{"model": "small", "messages": [{"role": "user", "content": "x"}]}'
            head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
            writer.close()
        await until(lambda: len(rig.hooks.ok) == 3, "all calls ended")
        assert rig.hooks.ok == [True] * 3


async def test_a_client_that_has_its_answer_may_leave_while_the_call_ends() -> None:
    reply = AReply()
    reply.is_over = True
    task = asyncio.current_task()
    assert task is not None
    ClientWatch(reply).client_left()
    await asyncio.sleep(0)
    assert not task.cancelling()


async def test_a_server_that_stops_is_not_mistaken_for_a_client_that_left() -> None:
    watches: list[ClientWatch] = []

    async def call() -> bool:
        watches.append(ClientWatch(AReply()))
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return watches[0].takes_back()
        raise AssertionError

    task = asyncio.create_task(call())
    await asyncio.sleep(0)
    watches[0].client_left()
    task.cancel()
    assert not await task
