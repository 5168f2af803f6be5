"""How many KV blocks shadow work may still take: its share of the pool, by counting.

First form: it counts what unfinished shadows and pinned hand-offs hold beyond what they found in
the prefix cache. Which cached blocks are evicted first is not decided here.

Hosts: engine.scheduler, engine.connector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from vllm.v1.core.kv_cache_manager import KVCacheManager

    from engine.shadow_requests import ShadowRequest

START_FREE_SHARE = 0.05
"""Of the pool: beside running requests, a shadow starts only above it. One that was just dropped
for memory would otherwise start again in the next step, and be dropped again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one shadow request brings along."""

    started: bool
    tail_tokens: int = 0
    """Slots that it holds and has not filled."""
    idle_hit_blocks: int = 0
    """Free blocks that its prefix takes out of the pool when it starts."""
    own_hit_blocks: int = 0
    """Blocks of that prefix that it computed itself, before it was dropped."""


@dataclass(slots=True, kw_only=True)
class KvRoom:
    """What is left in the step that is being built; `take` uses it up."""

    free_blocks: int
    cap_blocks: int
    block_size: int
    start_free_blocks: int = 0

    def fits(self, tokens: int, claim: Claim) -> int:
        """How many of these tokens have a slot."""
        free_blocks = self.free_blocks - claim.idle_hit_blocks
        if not claim.started and free_blocks < self.start_free_blocks:
            return 0
        blocks = max(0, min(free_blocks, self.cap_blocks - claim.own_hit_blocks))
        return min(tokens, claim.tail_tokens + blocks * self.block_size)

    def take(self, tokens: int, claim: Claim) -> int:
        """As `fits`, and those slots are gone."""
        tokens = self.fits(tokens, claim)
        if tokens > 0:
            blocks = blocks_of(max(0, tokens - claim.tail_tokens), self.block_size)
            self.cap_blocks -= blocks + claim.own_hit_blocks
            self.free_blocks -= blocks + claim.idle_hit_blocks
        return tokens


class ShadowKv:
    """Counts what the shadow requests of one engine hold."""

    def __init__(self, manager: KVCacheManager, block_size: int, cap_share: float) -> None:
        self._manager = manager
        self._block_size = block_size
        self._pool_blocks = manager.block_pool.num_gpu_blocks
        self.cap_blocks = int(cap_share * self._pool_blocks)
        self.pinned: dict[str, int] = {}
        """Own blocks of finished requests that wait for the other side to read them."""

    def change_cap(self, cap_share: float) -> None:
        """A job that holds more than a smaller cap gets no more of it."""
        self.cap_blocks = int(cap_share * self._pool_blocks)

    def look_up(self, shadow: ShadowRequest, now_s: float) -> None:
        """What the prefix cache holds of a request that has not started."""
        hit, hit_tokens, _ = self._manager.get_computed_blocks(shadow.request)
        shadow.hit_tokens = hit_tokens
        shadow.idle_hit_blocks = sum(block.ref_cnt == 0 for block in hit.blocks[0])
        shadow.looked_up_s = now_s

    def claim(self, shadow: ShadowRequest) -> Claim:
        if not shadow.started:
            own_tokens = shadow.hit_tokens - shadow.found_tokens
            return Claim(
                started=False,
                idle_hit_blocks=shadow.idle_hit_blocks,
                own_hit_blocks=max(0, own_tokens) // self._block_size,
            )
        slots = self._held_blocks(shadow) * self._block_size
        return Claim(started=True, tail_tokens=slots - shadow.request.num_computed_tokens)

    def own_blocks(self, shadow: ShadowRequest) -> int:
        if not shadow.started:
            return 0
        return self._held_blocks(shadow) - shadow.found_tokens // self._block_size

    def room(self, shadows: Collection[ShadowRequest], running_requests: int) -> KvRoom:
        """`running_requests` may each need one more block before the next step is planned."""
        taken = sum(map(self.own_blocks, shadows)) + sum(self.pinned.values())
        share = START_FREE_SHARE if running_requests else 0.0
        return KvRoom(
            free_blocks=self._manager.block_pool.get_num_free_blocks() - running_requests,
            cap_blocks=self.cap_blocks - taken,
            block_size=self._block_size,
            start_free_blocks=int(share * self._pool_blocks),
        )

    def cap_room(self, shadow: ShadowRequest) -> KvRoom:
        """What the cap alone would leave this request if it were the only one."""
        left = self.cap_blocks - self.own_blocks(shadow)
        return KvRoom(free_blocks=self._pool_blocks, cap_blocks=left, block_size=self._block_size)

    def _held_blocks(self, shadow: ShadowRequest) -> int:
        # Not `get_block_ids`, which lists the ids of the whole prefix.
        return len(self._manager.get_blocks(shadow.request.request_id).blocks[0])


def blocks_of(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)
