"""The simulator's KV classes and the engine's queue take the same blocks on the same event log.

A token of the simulator stands for a block here. Both see sessions whose contexts grow by calls and
by shadows, requests whose KV is of no use later, and time."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.sim.approach import Approach
from bench.sim.build import RoutedWork, Workload, build_world
from bench.sim.kv_cache import has_room, release, reserve
from bench.sim.shadow_kv import end_write, room_for, write_shadow
from bench.sim.world import as_rows
from policy.kv_class import victims_for_shadow
from policy.vocabulary import RequestClass
from tests.bench.sim.builders import GEMMA, a_session, colocated, requests
from tests.engine.test_kv_blocks import Rig

if TYPE_CHECKING:
    from bench.sim.world import World

pytestmark = pytest.mark.vllm_cpu

POOL, SESSIONS, REQUESTS = 60, 4, 40
CAP_SHARE = 0.5


@cache
def _records() -> World:
    work = RoutedWork(a_session((0, 500, 2, 0.0)), (0,))
    workload = Workload(normal=(requests(*[(0.0, 5, 2)] * REQUESTS),), sessions=(work,) * SESSIONS)
    approach = Approach(kv_cap_share=CAP_SHARE, idle_age_s=5.0)
    return build_world(colocated(GEMMA), workload, approach)


def a_world() -> World:
    """Requests 0 to 39 are normal traffic; then comes one call of each session."""
    world = as_rows(_records())
    row = world.instances[0]
    row.pool_tokens = row.free_tokens = POOL
    world.cluster[0].block_tokens = 1
    world.cluster[0].now_s = 100.0
    return world


@dataclass
class Twins:
    """The same events in both; `contexts` are the blocks of each session in the engine."""

    world: World = field(default_factory=a_world)
    rig: Rig = field(default_factory=lambda: Rig(total=POOL, cap_share=CAP_SHARE))
    contexts: list[list[int]] = field(default_factory=lambda: [[] for _ in range(SESSIONS)])
    begun: int = 0

    def shadow(self, session: int, blocks: int) -> None:
        queue, context = self.rig.queue, self.contexts[session]
        pool = queue.counts().after_hit(queue.hit_of([[self.rig.blocks[n] for n in context]]))
        victims = victims_for_shadow(blocks, pool, queue.params)
        assert room_for(self.world, session, 0, blocks) == victims
        if victims.blocks == 0:
            return
        self.rig.hit(context, RequestClass.SHADOW)
        self.contexts[session] = context + self._take(victims.blocks, RequestClass.SHADOW)
        self._free(self.contexts[session])
        self.world.entries[session].instance = 0
        write_shadow(self.world, session, 0, victims.blocks)
        assert end_write(self.world, session, 0, len(context), victims.blocks)

    def call(self, session: int, blocks: int) -> None:
        """It keeps what it finds and adds some."""
        held = len(self.contexts[session])
        if not self._fits(held + blocks):
            return
        request = REQUESTS + session
        self.world.requests[request].kept_tokens = held
        self.world.requests[request].prompt_tokens = held + blocks
        found = reserve(self.world, request, 0, held + blocks)
        assert found == held
        self.rig.hit(self.contexts[session], RequestClass.ROUTED)
        taken = self._take(blocks, RequestClass.ROUTED)
        release(self.world, request, 0, held + blocks, held + blocks)
        self.contexts[session] += taken
        self._free(self.contexts[session])

    def request(self, blocks: int) -> None:
        if self.begun == REQUESTS or not self._fits(blocks):
            return
        reserve(self.world, self.begun, 0, blocks)
        taken = self._take(blocks, RequestClass.NORMAL)
        release(self.world, self.begun, 0, blocks, 0)
        self.begun += 1
        self.rig.free(taken, cached=False)

    def later(self, seconds: float) -> None:
        self.rig.later(seconds)
        self.world.cluster[0].now_s = self.rig.now_s

    def compare(self) -> None:
        counts, row = self.rig.queue.counts(), self.world.instances[0]
        assert counts.uncached_blocks == row.free_tokens
        assert counts.cached_shadow_blocks == counts.shadow_blocks == row.shadow_tokens
        assert counts.cached_normal_blocks == row.cached_tokens
        for session, context in enumerate(self.contexts):
            entry = self.world.entries[session]
            assert entry.tokens + entry.shadow_tokens == len(context), session

    def _fits(self, blocks: int) -> bool:
        return bool(has_room(self.world, 0, blocks))

    def _take(self, blocks: int, by: RequestClass) -> list[int]:
        """Whose blocks they were, they are cut off."""
        taken = self.rig.use(blocks, by) if blocks else []
        lost = set(taken)
        for session, context in enumerate(self.contexts):
            kept = [block for block in context if block not in lost]
            assert kept == context[: len(kept)], "a hole in a context"
            self.contexts[session] = kept
        return taken

    def _free(self, context: list[int]) -> None:
        """The last blocks first, as vLLM does."""
        self.rig.free(context[::-1])


steps: Any = st.lists(
    st.tuples(
        st.sampled_from(["shadow", "call", "request", "later"]),
        st.integers(0, SESSIONS - 1),
        st.integers(1, 30),
    ),
    max_size=40,
)


@settings(max_examples=100)
@given(steps)
def test_both_evict_the_same(events: list[tuple[str, int, int]]) -> None:
    twins = Twins()
    for kind, session, amount in events:
        if kind == "shadow":
            twins.shadow(session, amount)
        elif kind == "call":
            twins.call(session, amount)
        elif kind == "request":
            twins.request(amount)
        else:
            twins.later(amount / 4)
        twins.compare()
