"""Seeded random traffic on vLLM's real schedulers: what must hold whatever arrives when."""

from __future__ import annotations

import random

import pytest
from vllm.v1.request import Request, RequestStatus

from colocated.scheduler import ColocatedScheduler
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

SESSIONS = 6
SLOTS = 4


class Traffic:
    """The same requests for the same seed; shadows can be left out, which changes no other one.

    Each session has one text, so that its calls and shadows share a prefix."""

    def __init__(self, seed: int, world: World, *, with_shadows: bool) -> None:
        self.chance = random.Random(seed)
        self.world = world
        self.with_shadows = with_shadows
        self.foreground: list[Request] = []
        self.shadows: list[str] = []
        self.gone: set[str] = set()

    def arrive(self, step: int) -> None:
        chance = self.chance
        draws = [chance.random() for _ in range(4)]
        session = chance.randrange(SESSIONS)
        tokens = chance.randrange(2, 24 * BLOCK)
        text = prompt(tokens, seed=session + 1)
        output_tokens = chance.randrange(1, 60)
        if draws[0] < 0.06:
            self._foreground(normal(f"n{step}", tokens, output_tokens))
        if draws[1] < 0.06:
            self._foreground(routed(f"r{step}", text, f"s{session}", output_tokens))
        if draws[2] < 0.15 and self.with_shadows:
            self.shadows.append(f"x{step}")
            self.world.add(shadow(f"x{step}", text, f"s{session}", probability=draws[3]))
        if draws[3] < 0.02 and self.with_shadows and self.shadows:
            self._leave(chance.choice(self.shadows))

    def _foreground(self, request: Request) -> None:
        self.foreground.append(request)
        self.world.add(request)

    def _leave(self, name: str) -> None:
        if name not in self.world.finished:
            self.gone.add(name)
            self.world.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)


def a_run(
    seed: int, mode: str, blocks: int, *, with_shadows: bool = True, idle_age_s: float = 0.5
) -> tuple[World, Traffic]:
    scheduler = scheduler_of(
        ColocatedScheduler,
        params(kv_cap_share=0.5, idle_age_s=idle_age_s, max_chunk_tokens=96, n_min_tokens=16),
        asynchronous=mode == "async",
        blocks=blocks,
        max_num_seqs=SLOTS,
    )
    world = World(scheduler, depth=2 if mode == "async" else 1)
    traffic = Traffic(seed, world, with_shadows=with_shadows)
    free = world.free_blocks()
    for step in range(600):
        traffic.arrive(step)
        waiting = any(scheduler.get_request_counts()[1:])
        scheduled = world.step()
        scheduler.kv_cache_manager.block_pool.free_block_queue.check()
        shadow_tokens = sum(n for name, n in scheduled.items() if name.startswith("x"))
        assert shadow_tokens <= 96
        assert not (waiting and shadow_tokens)
    world.run(limit=5000)
    assert world.free_blocks() == free
    return world, traffic


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("blocks", [110, 200], ids=["tight", "roomy"])
@pytest.mark.parametrize("seed", range(4))
def test_every_request_ends_and_no_normal_one_is_preempted_for_a_shadow(
    seed: int, blocks: int, mode: str
) -> None:
    world, traffic = a_run(seed, mode, blocks)
    without, plain = a_run(seed, mode, blocks, with_shadows=False)
    assert not any(request.num_preemptions for request in plain.foreground), "the pool is too small"
    assert not any(request.num_preemptions for request in traffic.foreground)
    for request in traffic.foreground:
        assert world.emitted[request.request_id] == request.max_tokens
    assert set(traffic.shadows) - traffic.gone <= set(world.finished)
    assert world.scheduler.shadow_stats.finished > 5
    assert without.scheduler.shadow_stats.arrived == 0


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("seed", range(3))
def test_nothing_hangs_when_even_normal_traffic_is_preempted(seed: int, mode: str) -> None:
    world, traffic = a_run(seed, mode, 45, idle_age_s=0.0)
    for request in traffic.foreground:
        assert world.emitted[request.request_id] == request.max_tokens
    assert set(traffic.shadows) - traffic.gone <= set(world.finished)
    assert world.scheduler.shadow_stats.drops > 0
