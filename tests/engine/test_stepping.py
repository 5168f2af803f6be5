"""vLLM's own classes hand out the blocks of what goes on, ours those of whoever is admitted."""

from __future__ import annotations

import dis
from typing import Any

import pytest
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager

from colocated.scheduler import ColocatedScheduler
from engine.kv_pool import TwoClassPool, become
from engine.shadow_requests import ShadowKVCacheManager
from tests.engine.scheduler_world import World, normal, params, scheduler_of, shadow

pytestmark = pytest.mark.vllm_cpu

STOCK, OURS = (KVCacheManager, BlockPool), (ShadowKVCacheManager, TwoClassPool)


@pytest.fixture
def allocations(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Who was given blocks, and by which classes."""
    seen: list[tuple[str, Any]] = []
    allocate = KVCacheManager.allocate_slots

    def watched(self: KVCacheManager, request: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append((request.request_id, (type(self), type(self.block_pool))))
        return allocate(self, request, *args, **kwargs)

    monkeypatch.setattr(KVCacheManager, "allocate_slots", watched)
    return seen


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_only_who_is_admitted_or_is_a_shadow_passes_through_our_classes(
    allocations: list[tuple[str, Any]], asynchronous: bool
) -> None:
    scheduler = scheduler_of(ColocatedScheduler, params(), asynchronous=asynchronous)
    world = World(scheduler, depth=2 if asynchronous else 1)
    world.add(normal("first", 40, max_tokens=50))
    world.step()
    world.add(shadow("job", 3000))
    for _ in range(3):
        world.step()
    world.add(normal("second", 40, max_tokens=50))
    world.step()
    assert allocations == [
        ("first", OURS),
        ("first", STOCK),
        ("job", OURS),
        ("first", STOCK),
        ("job", OURS),
        ("first", STOCK),
        ("job", OURS),
        ("first", STOCK),
        ("second", OURS),
    ]
    assert (type(scheduler.kv_cache_manager), type(scheduler.kv_cache_manager.block_pool)) == OURS


def test_where_a_running_request_may_find_no_block_it_passes_through_our_classes(
    allocations: list[tuple[str, Any]],
) -> None:
    scheduler = scheduler_of(ColocatedScheduler, params(), blocks=12)
    world = World(scheduler)
    world.add(normal("first", 40, max_tokens=50))
    for _ in range(2):
        world.step()
    assert allocations == [("first", OURS), ("first", OURS)]


def test_what_vllm_reads_of_an_object_that_became_ours_takes_the_interpreters_fast_path() -> None:
    class Thing:
        def __init__(self) -> None:
            self.blocks, self.size = 3, 4

    class Other(Thing):
        pass

    def reading(thing: Thing) -> int:
        return thing.blocks * thing.size

    thing = Thing()
    become(thing, Other)
    assert isinstance(thing, Other)
    assert {reading(thing) for _ in range(200)} == {12}
    reads = {step.opname for step in dis.get_instructions(reading, adaptive=True)}
    assert "LOAD_ATTR_WITH_HINT" in reads
    assert not reads & {"LOAD_ATTR", "LOAD_ATTR_ADAPTIVE"}
