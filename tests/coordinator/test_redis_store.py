"""Several coordinators share their sessions through a real Redis, and lose nothing."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from bench.fake_engine import create_app, running
from coordinator.app import create_app as create_coordinator
from coordinator.calls import CallKind
from coordinator.sessions import CallRecord, Session
from tests.coordinator.call_rig import CHAT, a_chat, a_cluster, serving, until
from tests.coordinator.redis_rig import redis_url  # noqa: F401  a fixture

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coordinator.redis_store import RedisStore

KIND = CallKind.CHAT
TWO_EACH = {
    "small-p": ("small", "prefill"),
    "small-p2": ("small", "prefill"),
    "small-d": ("small", "decode"),
    "small-d2": ("small", "decode"),
}


@asynccontextmanager
async def stores(
    url: str, number: int = 2, most: int = 100, ttl_s: float = 60.0
) -> AsyncIterator[list[RedisStore]]:
    """Of coordinators whose monotonic clocks have nothing to do with each other."""
    from coordinator.redis_store import RedisStore

    prefix = uuid.uuid4().hex  # tests share the server
    made = [
        RedisStore(
            url,
            ttl_s=ttl_s,
            max_sessions=most,
            clock=lambda lead_s=at * 1000.0: asyncio.get_running_loop().time() + lead_s,
            prefix=prefix,
        )
        for at in range(number)
    ]
    try:
        yield made
    finally:
        for store in made:
            await store.stop()


def a_record(call: int, started_s: float = 1.0) -> CallRecord:
    return CallRecord(call=call, model="m", is_switch=False, e2el_ms=5.0, started_s=started_s)


async def test_what_one_coordinator_saved_another_goes_on_with(redis_url: str) -> None:  # noqa: F811
    async with stores(redis_url) as (one, two):
        session = await one.get_or_create("t", "s", KIND)
        session.calls_total, session.current_model = 3, "m"
        warmth = session.warmth_of("m")
        warmth.prefill_instance, warmth.own_tokens, warmth.computed_tokens = "p1", 640, 320
        warmth.touched_s = asyncio.get_running_loop().time()
        session.record(a_record(3, warmth.touched_s))
        await one.save(session)
        other = await two.get("t", "s")
        assert other is not None
        assert (other.calls_total, other.current_model) == (3, "m")
        assert other.peek("m").prefill_instance == "p1"
        assert (other.peek("m").own_tokens, other.peek("m").computed_tokens) == (640, 320)
        assert other.peek("m").touched_s - warmth.touched_s == pytest.approx(1000, abs=1)
        assert [record.call for record in other.calls] == [3]
        assert other.calls[0].started_s == pytest.approx(other.peek("m").touched_s, abs=1)


async def test_no_update_is_lost_when_many_write_at_once(redis_url: str) -> None:  # noqa: F811
    async with stores(redis_url, 4) as many:

        async def calls(store: RedisStore, at: int) -> None:
            for number in range(25):
                session = await store.get_or_create("t", "s", KIND)
                session.calls_total += 1
                session.warmth_of(f"m{at}").own_tokens = number
                session.warmth_of("shared").computed_tokens += 10
                session.record(a_record(number, at * 100.0 + number))
                await asyncio.gather(store.save(session), store.save(session))

        await asyncio.gather(*(calls(store, at) for at, store in enumerate(many)))
        async with stores(redis_url, 1) as _:
            session = await many[0].get("t", "s")
            assert session is not None
            assert session.calls_total == 100
            assert session.peek("shared").computed_tokens == 1000
            assert {session.peek(f"m{at}").own_tokens for at in range(4)} == {24}
            assert len(session.calls) == 100


async def test_a_removed_session_stays_removed(redis_url: str) -> None:  # noqa: F811
    dropped: list[str] = []
    async with stores(redis_url) as (one, two):
        two.on_dropped = lambda session: dropped.append(session.id)
        await one.get_or_create("t", "s", KIND)
        held = await two.get("t", "s")
        assert held is not None
        assert await one.remove("t", "s") is not None
        held.calls_total += 1
        await two.save(held)
        assert dropped == ["s"]
        assert await one.get("t", "s") is None
        assert (await one.page("t", 0, 10)).total == 0


async def test_tenants_share_nothing(redis_url: str) -> None:  # noqa: F811
    async with stores(redis_url) as (one, two):
        await one.get_or_create("t", "s", KIND)
        await one.get_or_create("u", "s", KIND)
        await one.remove("t", "s")
        assert await two.get("t", "s") is None
        assert await two.get("u", "s") is not None
        assert [session.tenant for session in (await two.page(None, 0, 10)).sessions] == ["u"]


async def test_the_oldest_session_makes_room(redis_url: str) -> None:  # noqa: F811
    async with stores(redis_url, most=3) as (one, two):
        for name in ("a", "b", "c", "d"):
            await one.get_or_create("t", name, KIND)
        page = await two.page("t", 0, 10)
        assert [session.id for session in page.sessions] == ["d", "c", "b"]


async def test_a_session_that_nobody_used_for_its_time_to_live_is_gone(
    redis_url: str,  # noqa: F811
) -> None:
    async with stores(redis_url, ttl_s=0.05) as (one, two):
        await one.get_or_create("t", "s", KIND)
        async with asyncio.timeout(10):
            # Redis signals nothing to a test: poll, with the deadline above.
            while (await two.page("t", 0, 10)).total:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            # The list goes by the coordinator's clock, the session by Redis': a moment apart.
            while await one.get("t", "s") is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_looking_at_a_session_does_not_keep_it(redis_url: str) -> None:  # noqa: F811
    async with stores(redis_url, ttl_s=0.5) as (one, two):
        session = await one.get_or_create("t", "s", KIND)
        async with asyncio.timeout(10):
            while await two.get("t", "s") is not None:
                await one.page("t", 0, 10)
                one.changed(session)
                await asyncio.sleep(0.01)


async def test_an_unnamed_session_is_found_by_what_it_extends_and_only_once(
    redis_url: str,  # noqa: F811
) -> None:
    async with stores(redis_url) as (one, two):
        first = await one.extend("t", KIND, [b"1"])
        await one.save(first)
        both = await asyncio.gather(
            one.extend("t", KIND, [b"1", b"2"]), two.extend("t", KIND, [b"1", b"2x"])
        )
        assert [session.id for session in both].count(first.id) == 1


async def test_what_shadow_work_did_is_seen_by_others_soon(redis_url: str) -> None:  # noqa: F811
    async with stores(redis_url) as (one, two):
        await one.start()
        session = await one.get_or_create("t", "s", KIND)
        session.warmth_of("m").shadow_tokens = 512
        one.changed(session)
        await until(lambda: not one._changed, "flushed")
        await asyncio.sleep(0.05)
        other = await two.get("t", "s")
        assert other is not None
        assert other.peek("m").shadow_tokens == 512


async def test_a_redis_that_is_away_is_an_error_that_says_so() -> None:
    pytest.importorskip("redis", reason="the extra `redis` is not installed")
    from coordinator.errors import StoreUnavailable

    async with stores("redis://127.0.0.1:1/0", 1) as (one,):
        with pytest.raises(StoreUnavailable, match="redis_url"):
            await one.get_or_create("t", "s", KIND)


async def test_a_session_outlives_the_coordinator_that_it_was_on(redis_url: str) -> None:  # noqa: F811
    async with AsyncExitStack() as stack:
        instances: dict[str, tuple[str, str, str]] = {}
        for name, (model, role) in TWO_EACH.items():
            url = await stack.enter_async_context(running(create_app(model=model, role=role)))
            instances[name] = (model, role, url)
        limits = {"redis_url": redis_url}

        async def another() -> tuple[Any, httpx.AsyncClient, AsyncExitStack]:
            own = AsyncExitStack()
            app = create_coordinator(a_cluster(instances, limits))
            base = await own.enter_async_context(serving(app))
            client = await own.enter_async_context(httpx.AsyncClient(base_url=base, timeout=20))
            await until(lambda: not app.state.health.not_ready(), "ready")
            return app, client, own

        _, first, first_stack = await another()
        app, second, second_stack = await another()
        stack.push_async_callback(second_stack.aclose)
        names = [f"{uuid.uuid4().hex}-{number}" for number in range(8)]
        before = {name: await placed(first, name) for name in names}
        assert len(set(before.values())) > 1, "not all in one place"
        await first_stack.aclose()
        assert {name: await placed(second, name) for name in names} == before
        shown = (await second.get(f"/v1/sessions/{names[0]}")).json()
        assert [call["call"] for call in shown["calls"]] == [1, 2]
        assert shown["calls"][1]["cached_tokens"] > 0
        held: Session | None = await app.state.sessions.get("anonymous", names[0])
        assert held is not None
        assert held.calls_total == 2


async def placed(client: httpx.AsyncClient, session: str) -> tuple[str, str]:
    headers = {"x-session-id": session}
    reply = await client.post(CHAT, json=a_chat("hello " * 200), headers=headers)
    assert reply.status_code == 200, reply.text
    prefill = reply.headers["x-shadowprefill-p-instance"]
    return prefill, reply.headers["x-shadowprefill-d-instance"]
