"""The KV classes on vLLM's real schedulers and pool: who takes which block, and what that costs
normal traffic (nothing)."""

from __future__ import annotations

from typing import Any

import pytest
from vllm.config import KVEventsConfig
from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.v1.engine import FinishReason

from colocated.scheduler import ColocatedScheduler
from engine.shadow_requests import CappedRequest
from policy.kv_class import KvClassParams
from policy.vocabulary import Controller, KvClass
from tests.engine.scheduler_world import (
    BLOCK,
    World,
    normal,
    params,
    prompt,
    routed,
    scheduler_of,
    shadow,
)

pytestmark = pytest.mark.vllm_cpu

IDLE_AGE_S = 5.0


@pytest.fixture(params=["sync", "async"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def a_world(
    mode: str = "sync", *, blocks: int = 101, vllm: dict[str, Any] | None = None, **changes: Any
) -> World:
    """A hundred blocks and vLLM's null block; the shadow class may hold half of them."""
    scheduler = scheduler_of(
        ColocatedScheduler,
        params(**({"kv_cap_share": 0.5} | changes)),
        asynchronous=mode == "async",
        blocks=blocks,
        **(vllm or {}),
    )
    return World(scheduler, depth=2 if mode == "async" else 1)


def run(world: World, *requests: Any) -> None:
    world.add(*requests)
    world.run()
    queue_of(world).check()


def queue_of(world: World) -> Any:
    return world.scheduler.kv_cache_manager.block_pool.free_block_queue


def counts_of(world: World) -> Any:
    return world.scheduler.shadow_kv.counts


def cached_tokens(world: World, name: str) -> int:
    tokens: int = world.finished[name].prefill_stats.num_cached_tokens
    return tokens


def test_what_a_shadow_computed_counts_until_it_is_evicted(mode: str) -> None:
    world = a_world(mode)
    world.add(shadow("s", 20 * BLOCK + 3))
    world.step()
    assert (counts_of(world).shadow_blocks, counts_of(world).cached_shadow_blocks) == (4, 0)
    world.run()
    assert (counts_of(world).shadow_blocks, counts_of(world).cached_shadow_blocks) == (20, 20)
    run(world, normal("n", 90 * BLOCK))
    assert counts_of(world).shadow_blocks == 10
    assert counts_of(world).evictions == {KvClass.SHADOW: 10, KvClass.NORMAL: 0}


def test_normal_traffic_evicts_newer_shadow_entries_before_older_normal_ones(mode: str) -> None:
    world = a_world(mode)
    old = prompt(50 * BLOCK, seed=1)
    run(world, normal("old", old))
    run(world, shadow("s", 40 * BLOCK))
    run(world, normal("new", 50 * BLOCK))
    assert counts_of(world).evictions == {KvClass.SHADOW: 40, KvClass.NORMAL: 0}
    run(world, normal("again", old))
    assert cached_tokens(world, "again") == 49 * BLOCK  # vLLM always computes the last token


def test_shadow_work_leaves_what_was_used_within_the_idle_age(mode: str) -> None:
    world = a_world(mode, max_chunk_tokens=512)
    recent = prompt(95 * BLOCK, seed=1)
    run(world, normal("recent", recent))
    world.add(shadow("s", 20 * BLOCK))
    for _ in range(20):
        world.step()
    assert counts_of(world).evictions == {KvClass.SHADOW: 0, KvClass.NORMAL: 0}
    assert "s" in world.scheduler.shadows
    world.now_s += IDLE_AGE_S
    world.run()
    assert world.finished["s"].finish_reason is FinishReason.LENGTH
    assert counts_of(world).evictions[KvClass.NORMAL] == 15
    run(world, normal("again", recent))
    assert cached_tokens(world, "again") == 80 * BLOCK  # the end of a prefix goes first


@pytest.mark.parametrize(("age_s", "evicted"), [(IDLE_AGE_S, 0), (IDLE_AGE_S + 0.01, 4)])
def test_the_idle_age_is_exceeded_and_not_just_reached(age_s: float, evicted: int) -> None:
    world = a_world(n_min_tokens=1)
    world.step_s = 0.0
    run(world, normal("recent", 100 * BLOCK - 1))
    queue_of(world).change(KvClassParams(kv_cap_share=0.5, idle_age_s=IDLE_AGE_S))
    world.add(shadow("s", 4 * BLOCK + 1))
    world.now_s += age_s
    for _ in range(2):
        world.step()
    assert counts_of(world).evictions[KvClass.NORMAL] == evicted


def test_at_the_cap_the_next_job_waits_and_then_takes_the_place_of_the_oldest(mode: str) -> None:
    world = a_world(mode, kv_cap_share=0.25)
    run(world, shadow("first", 12 * BLOCK))
    run(world, shadow("second", 12 * BLOCK))
    started_s = world.now_s
    run(world, shadow("third", 12 * BLOCK))
    assert world.finished["third"].finish_reason is FinishReason.LENGTH
    assert world.now_s - started_s > IDLE_AGE_S - 1.0
    assert counts_of(world).shadow_blocks <= 25
    assert counts_of(world).evictions == {KvClass.SHADOW: 11, KvClass.NORMAL: 0}
    assert queue_of(world).counts().uncached_blocks >= 75


def test_a_job_that_does_not_fit_beside_a_started_one_lets_it_end_first(mode: str) -> None:
    """Else each would hold a part of the cap, and one would have to be dropped for the other."""
    world = a_world(mode, kv_cap_share=0.25, idle_age_s=0.1)
    world.add(normal("busy", 30, max_tokens=400))
    world.add(shadow("first", 20 * BLOCK, session="a", probability=0.5))
    for _ in range(4):
        world.step()
    assert world.scheduler.shadows["first"].started
    world.add(shadow("likelier", 20 * BLOCK, session="b", probability=0.9))
    world.run()
    for name in ("first", "likelier"):
        assert world.finished[name].finish_reason is FinishReason.LENGTH
    assert world.scheduler.shadow_stats.drops == 0
    assert world.scheduler.shadow_stats.tokens == 2 * 20 * BLOCK


def test_an_allocation_for_a_shadow_finds_no_more_than_its_room() -> None:
    """Whatever the plan thought: requests before it in the step may have taken that."""
    world = a_world()
    run(world, normal("recent", 95 * BLOCK))
    request = shadow("s", 20 * BLOCK)
    request.__class__ = CappedRequest
    manager = world.scheduler.kv_cache_manager
    assert manager.allocate_slots(request, 6 * BLOCK) is None
    assert manager.allocate_slots(request, 5 * BLOCK) is not None
    assert counts_of(world).shadow_blocks == 5
    assert manager.allocate_slots(normal("n", 20 * BLOCK), 20 * BLOCK) is not None
    assert counts_of(world).evictions == {KvClass.SHADOW: 0, KvClass.NORMAL: 20}


def test_a_job_beyond_the_cap_ends_with_a_reason_and_is_counted(mode: str) -> None:
    world = a_world(mode, kv_cap_share=0.25)
    run(world, shadow("s", 40 * BLOCK))
    assert world.finished["s"].stop_reason == "truncated_by_cap"
    assert counts_of(world).truncations == 1
    run(world, shadow("again", 40 * BLOCK), shadow("short", 3 * BLOCK))
    assert world.finished["again"].stop_reason == "truncated_by_cap"
    assert world.finished["short"].finish_reason is FinishReason.LENGTH


def test_a_job_whose_start_is_cached_as_normal_may_be_longer_than_the_cap(mode: str) -> None:
    world = a_world(mode, kv_cap_share=0.25)
    history = prompt(60 * BLOCK, seed=7)
    run(world, normal("call", history[: 40 * BLOCK]))
    run(world, shadow("s", history))
    assert world.finished["s"].finish_reason is FinishReason.LENGTH
    assert counts_of(world).shadow_blocks == 20


@pytest.mark.parametrize("kind", ["normal", "routed"])
def test_a_call_that_hits_shadow_blocks_makes_them_normal(mode: str, kind: str) -> None:
    world = a_world(mode)
    text = prompt(20 * BLOCK + 5, seed=3)
    run(world, shadow("s", text, session="a"))
    call = normal("call", text) if kind == "normal" else routed("call", text, "a")
    run(world, call)
    assert (counts_of(world).promotions, counts_of(world).shadow_blocks) == (20, 0)
    assert cached_tokens(world, "call") == 20 * BLOCK


def test_a_call_that_hits_a_shadow_that_is_running_makes_its_blocks_normal(mode: str) -> None:
    world = a_world(mode)
    text = prompt(40 * BLOCK, seed=3)
    world.add(shadow("s", text, session="a"))
    for _ in range(3):
        world.step()
    world.add(normal("call", text[: 6 * BLOCK + 1]))
    world.run()
    assert counts_of(world).promotions == 6
    assert counts_of(world).shadow_blocks == 34
    assert world.finished["s"].finish_reason is FinishReason.LENGTH


def test_a_shadow_that_hits_blocks_of_others_changes_no_class(mode: str) -> None:
    """The start is a call's, the middle another session's shadow's."""
    world = a_world(mode)
    text = prompt(30 * BLOCK, seed=3)
    run(world, normal("call", text[: 10 * BLOCK]))
    run(world, shadow("other", text[: 20 * BLOCK], session="b"))
    run(world, shadow("s", text, session="a"))
    assert cached_tokens(world, "s") == 20 * BLOCK
    assert counts_of(world).promotions == 0
    assert counts_of(world).shadow_blocks == 20
    assert queue_of(world).counts().cached_normal_blocks == 10


def test_a_block_with_the_same_hash_keeps_its_own_class(mode: str) -> None:
    """Both compute the same text at the same time: two blocks for each hash."""
    world = a_world(mode, n_min_tokens=1, max_chunk_tokens=64)
    text = prompt(8 * BLOCK, seed=3)
    world.add(normal("busy", 30, max_tokens=40), shadow("s", text))
    world.step()
    world.step()
    world.add(normal("call", text))
    world.run()
    queue_of(world).check()
    run(world, normal("burst", 99 * BLOCK))
    assert counts_of(world).shadow_blocks == 0


def test_a_cache_reset_leaves_no_class_behind(mode: str) -> None:
    world = a_world(mode)
    run(world, shadow("s", 20 * BLOCK), normal("n", 20 * BLOCK))
    assert world.scheduler.reset_prefix_cache()
    queue_of(world).check()
    assert counts_of(world).shadow_blocks == 0
    assert queue_of(world).counts().uncached_blocks == 100


def test_blocks_that_are_evicted_by_name_are_taken_next(mode: str) -> None:
    """vLLM does so with blocks that a connector failed to fill."""
    world = a_world(mode)
    run(world, shadow("s", 10 * BLOCK))
    pool = world.scheduler.kv_cache_manager.block_pool
    ids = {block.block_id for block in queue_of(world).oldest_shadow(3)}
    pool.evict_blocks(ids)
    queue_of(world).check()
    assert counts_of(world).shadow_blocks == 7
    assert {block.block_id for block in queue_of(world).get_all_free_blocks()[:3]} == ids


def test_a_lower_cap_holds_at_once_for_what_is_cached(mode: str) -> None:
    world = a_world(mode)
    run(world, shadow("s", 40 * BLOCK))
    world.scheduler.shadow_kv.change(KvClassParams(kv_cap_share=0.1, idle_age_s=1.0))
    queue_of(world).check()
    assert counts_of(world).shadow_blocks == 10
    run(world, normal("n", prompt(40 * BLOCK, seed=1)))


def test_kv_events_tell_what_was_stored_and_what_was_evicted(mode: str) -> None:
    events = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
    world = a_world(mode, vllm={"kv_events_config": events})
    told = events_of(world)
    run(world, shadow("s", 40 * BLOCK))
    run(world, normal("n", 80 * BLOCK))
    stored = hashes(told, BlockStored)
    removed = hashes(told, BlockRemoved)
    assert len(stored) == 120
    assert removed < stored
    assert len(removed) == counts_of(world).evictions[KvClass.SHADOW] == 20


def events_of(world: World) -> list[Any]:
    """Grows with every step."""
    kept: list[Any] = []
    pool = world.scheduler.kv_cache_manager.block_pool
    take = pool.take_events

    def take_and_keep() -> list[Any]:
        events: list[Any] = take()
        kept.extend(events)
        return events

    pool.take_events = take_and_keep
    return kept


def hashes(events: list[Any], kind: type) -> set[Any]:
    return {one for event in events if isinstance(event, kind) for one in event.block_hashes}


# Normal traffic is served as if there were no shadow KV


def schedule_of(world: World, steps: int) -> list[dict[str, int]]:
    return [
        {name: tokens for name, tokens in world.step().items() if not name.startswith("s")}
        for _ in range(steps)
    ]


@pytest.mark.parametrize("tokens", [9, 25, 45])
def test_a_burst_into_a_pool_full_of_shadow_kv_is_served_as_if_it_were_empty(
    mode: str, tokens: int
) -> None:
    """Cached shadow KV, a pinned and a running shadow; the twin has none of them."""
    full, empty = (a_world(mode, kv_cap_share=0.95, idle_age_s=1e6) for _ in range(2))
    run(full, shadow("s-cached", 70 * BLOCK))
    full.add(shadow("s-running", 60 * BLOCK))
    for _ in range(4):
        full.step()
    assert queue_of(full).counts().free_blocks > 0
    assert counts_of(full).shadow_blocks > 80
    for step in range(8):
        for world in (full, empty):
            world.add(normal(f"n{step}", tokens * BLOCK + step, max_tokens=20))
        assert schedule_of(full, 2) == schedule_of(empty, 2)
    assert schedule_of(full, 150) == schedule_of(empty, 150)
    for name in (f"n{step}" for step in range(8)):
        assert full.emitted[name] == empty.emitted[name] == 20
    queue_of(full).check()


def test_a_running_request_takes_cached_shadow_kv_before_a_shadow_is_dropped(mode: str) -> None:
    world = a_world(mode, kv_cap_share=0.9, n_min_tokens=1, max_chunk_tokens=1)
    run(world, shadow("s-cached", 60 * BLOCK))
    running = normal("n", 20 * BLOCK, max_tokens=70 * BLOCK)
    world.add(running, shadow("s-running", 60 * BLOCK))
    while counts_of(world).cached_shadow_blocks:
        world.step()
        assert world.scheduler.shadow_stats.drops == 0
    while "n" not in world.finished:
        world.step()
    assert world.scheduler.shadow_stats.drops > 0
    assert running.num_preemptions == 0
    assert world.emitted["n"] == 70 * BLOCK


def test_a_pool_that_normal_traffic_fills_is_no_error_for_shadows(mode: str) -> None:
    world = a_world(mode, shadow_timeout_s=3.0, controller=Controller.HARVEST_SLO)
    world.add(normal("n", 95 * BLOCK, max_tokens=4 * BLOCK), shadow("s", 20 * BLOCK))
    world.run()
    assert set(world.finished) == {"n", "s"}
