"""A coordinator that stops lets its calls end, and tells those that it cannot wait for."""

from __future__ import annotations

import asyncio
import functools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import uvicorn

from bench.fake_engine import FakeEngine, create_app, running
from coordinator.app import create_app as create_coordinator
from coordinator.hot_protocol import HotProtocol
from tests.coordinator.call_rig import CHAT, a_chat, a_cluster, events_of, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def a_served_coordinator(
    drain_s: int, **engine: Any
) -> AsyncIterator[tuple[uvicorn.Server, httpx.AsyncClient, FakeEngine]]:
    """By uvicorn's own server, as in coordinator.__main__."""
    fake = create_app(model="small", **engine)
    async with running(fake) as url:
        config = a_cluster({"small-1": ("small", "colocated", url)})
        app = create_coordinator(config)
        served = uvicorn.Config(
            app,
            port=0,
            http=functools.partial(HotProtocol, app.hot),
            log_config=None,
            timeout_graceful_shutdown=drain_s,
        )
        server = uvicorn.Server(served)
        serving = asyncio.create_task(server.serve())
        await until(lambda: server.started, "it listens")
        port = server.servers[0].sockets[0].getsockname()[1]
        base = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=base, timeout=20) as client:
            await until(lambda: not app.state.health.not_ready(), "ready")
            yield server, client, fake.state.engine
        server.should_exit = True
        await serving


async def test_a_stream_that_runs_at_a_stop_is_finished() -> None:
    async with a_served_coordinator(10, chunk_delay_s=0.1) as (server, client, _):
        body = a_chat(stream=True, max_tokens=6)
        async with client.stream("POST", CHAT, json=body) as reply:
            first = await anext(stream := reply.aiter_raw())
            server.should_exit = True
            rest = [chunk async for chunk in stream]
        assert events_of(first + b"".join(rest))[-1] == "[DONE]"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream_not_begun"])
async def test_a_call_that_cannot_end_in_time_is_told_to_come_again(stream: bool) -> None:
    async with a_served_coordinator(0) as (server, client, engine):
        engine.faults.hang()
        calling = asyncio.create_task(client.post(CHAT, json=a_chat(stream=stream)))
        await until(lambda: engine.running, "it runs")
        server.should_exit = True
        reply = await calling
        assert reply.status_code == 503
        assert reply.headers["retry-after"] == "1"
        assert reply.headers["connection"] == "close"
        assert reply.json()["error"]["code"] == "shutting_down"


async def test_a_stream_that_cannot_end_in_time_ends_with_an_error_and_no_stop() -> None:
    async with a_served_coordinator(0, chunk_delay_s=0.05) as (server, client, engine):
        async with client.stream("POST", CHAT, json=a_chat(stream=True)) as reply:
            first = await anext(stream := reply.aiter_raw())
            engine.faults.freeze()
            server.should_exit = True
            rest = [chunk async for chunk in stream]
        events = events_of(first + b"".join(rest))
        assert events[-1]["error"]["code"] == "shutting_down"
        assert "[DONE]" not in events
