"""How many KV blocks shadow work may still take in the step that is being planned.

Translates between an engine's requests and pool and policy.kv_class, which decides. What the pool
hands out is checked once more when it does (engine.kv_pool): requests that vLLM schedules before a
shadow may take more than the plan left them.

Hosts: engine.planning, engine.connector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from engine.kv_pool import TwoClassPool, become, install
from engine.shadow_requests import ShadowKVCacheManager
from policy.kv_class import (
    NO_HIT,
    KvClassParams,
    KvPool,
    PrefixHit,
    ShadowRoom,
    Shortage,
    Start,
    cap_blocks,
    shadow_room,
    shortage,
    start_room,
    victims_for_foreground,
    victims_for_shadow,
)
from policy.vocabulary import KvClass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.request import Request

    from engine.shadow_requests import ShadowRequest

LOOK_UP_INTERVAL_S = 0.1
"""A job that waits was looked up in the prefix cache once, its admission looks again. That walks
its whole prefix, so only a job which finds no room is looked up anew, and no more often than
this."""
START_FREE_SHARE = 0.05
"""Of the pool: beside running requests, a shadow starts only above it. One that was just dropped
for memory would otherwise start again in the next step, and be dropped again."""


class Claim(NamedTuple):
    """What one shadow request brings along."""

    started: bool
    missing_blocks: int
    """Until its end."""
    tail_tokens: int = 0
    """Slots that it holds and has not filled."""
    hit: PrefixHit = NO_HIT
    """What it finds in the cache when it starts."""


@dataclass(slots=True, kw_only=True)
class KvRoom:
    """What is left in the step that is being built; `take` uses it up."""

    pool: KvPool
    params: KvClassParams
    block_size: int
    groups: int = 1
    """KV cache groups of the model: a full block's tokens take one block in each."""
    start_free_blocks: int = 0
    promised_blocks: int = 0
    """That the started shadows still miss."""

    def fits(self, tokens: int, claim: Claim) -> int:
        """How many of these tokens have a slot."""
        blocks = self._room(self.pool.after_hit(claim.hit), claim).blocks
        return min(tokens, claim.tail_tokens + blocks // self.groups * self.block_size)

    def take(self, tokens: int, claim: Claim) -> int:
        """As `fits`, and those slots are gone."""
        tokens = self.fits(tokens, claim)
        if tokens > 0:
            pool = self.pool.after_hit(claim.hit)
            blocks = self._new_blocks(tokens, claim)
            victims = victims_for_shadow(blocks, pool, self.params)
            self.pool = pool.after_taking(victims, KvClass.SHADOW)
            # A job that starts is promised all it misses, one that goes on has got some of that.
            self.promised_blocks += (0 if claim.started else claim.missing_blocks) - blocks
        return tokens

    def shortage(self, tokens: int, claim: Claim, own_shadow_blocks: int) -> Shortage:
        """Why a chunk of so many tokens does not fit, and what will come of it."""
        later = self._room(self.pool.after_hit(claim.hit).aged(), claim)
        cap = cap_blocks(self.pool.total_blocks, self.params.kv_cap_share)
        return shortage(self._new_blocks(tokens, claim), own_shadow_blocks, later, cap)

    def _room(self, pool: KvPool, claim: Claim) -> ShadowRoom:
        if claim.started:
            return shadow_room(pool, self.params)
        start = Start(
            missing_blocks=claim.missing_blocks,
            promised_blocks=self.promised_blocks,
            spare_blocks=self.start_free_blocks,
        )
        return start_room(pool, start, self.params)

    def _new_blocks(self, tokens: int, claim: Claim) -> int:
        return self.groups * blocks_of(max(0, tokens - claim.tail_tokens), self.block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCounts:
    """For metrics and tests; blocks."""

    shadow_blocks: int
    """Of the shadow class, in use or cached."""
    cached_shadow_blocks: int
    """In nobody's use."""
    evictions: dict[KvClass, int]
    promotions: int
    truncations: int
    """Jobs."""


def _nothing(_request: Request) -> bool:
    """Shadows of this engine hold nothing that they could give up."""
    return False


class ShadowKv:
    """The KV pool of one engine, seen from its shadow requests."""

    def __init__(
        self,
        manager: KVCacheManager,
        block_size: int,
        params: KvClassParams,
        clock: Callable[[], float],
        reclaim: Callable[[Request], bool] = _nothing,
    ) -> None:
        """Changes the manager and its pool into ours."""
        self._stock = type(manager), type(manager.block_pool)
        become(manager, ShadowKVCacheManager)
        assert isinstance(manager, ShadowKVCacheManager)
        self._manager: ShadowKVCacheManager = manager
        self._manager.reclaim = reclaim
        self._block_size = block_size
        self._groups = manager.num_kv_cache_groups
        self._pool = install(manager.block_pool, params, clock)
        self.pinned: set[str] = set()
        """Finished shadow requests whose blocks wait for the other side to read them."""
        self.truncations = 0

    @property
    def counts(self) -> KvCounts:
        queue = self._pool.free_block_queue
        return KvCounts(
            shadow_blocks=queue.shadow_blocks,
            cached_shadow_blocks=queue.cached_shadow_blocks,
            evictions=dict(queue.evictions),
            promotions=queue.promotions,
            truncations=self.truncations,
        )

    @property
    def pool(self) -> KvPool:
        return self._pool.free_block_queue.counts()

    @property
    def held_blocks(self) -> int:
        """Of the shadow class, in somebody's use."""
        queue = self._pool.free_block_queue
        return queue.shadow_blocks - queue.cached_shadow_blocks

    @property
    def cap_blocks(self) -> int:
        share = self._pool.free_block_queue.params.kv_cap_share
        return cap_blocks(self._pool.num_gpu_blocks, share)

    def aside(self, most_new_blocks: int) -> None:
        """While vLLM schedules what runs: where no allocation can fail, and none hits an entry,
        vLLM's own classes do it, without a call of ours for each request. Call `back` when the
        first turn comes of a shadow or of a request that is admitted, and after the step."""
        if most_new_blocks <= self._pool.free_block_queue.num_free_blocks:
            self._manager.__class__, self._pool.__class__ = self._stock

    def back(self) -> None:
        self._manager.__class__, self._pool.__class__ = ShadowKVCacheManager, TwoClassPool

    def blocks_for(self, tokens: int, requests: int) -> int:
        """The most blocks that so many new tokens of so many requests can take."""
        return self._groups * (blocks_of(tokens, self._block_size) + requests)

    def change(self, params: KvClassParams) -> None:
        """Other parameters, between two steps."""
        self._pool.change(params)

    def look_up(self, shadow: ShadowRequest, now_s: float) -> None:
        """What the prefix cache holds of a request that has not started."""
        hit, hit_tokens, _ = self._manager.get_computed_blocks(shadow.request)
        shadow.hit_tokens = hit_tokens
        shadow.hit = self._pool.free_block_queue.hit_of(hit.blocks)
        shadow.looked_up_s = now_s

    def claim(self, shadow: ShadowRequest) -> Claim:
        tail_tokens = 0
        if shadow.started:
            held_blocks = len(self._manager.get_blocks(shadow.request.request_id).blocks[0])
            tail_tokens = held_blocks * self._block_size - shadow.request.num_computed_tokens
        missing_tokens = max(0, shadow.missing_tokens - tail_tokens)
        return Claim(
            started=shadow.started,
            missing_blocks=self._groups * blocks_of(missing_tokens, self._block_size),
            tail_tokens=tail_tokens,
            hit=NO_HIT if shadow.started else shadow.hit,
        )

    def room(self, started: Iterable[ShadowRequest], running_requests: int, now_s: float) -> KvRoom:
        """`running_requests` may each need one more block before the next step is planned."""
        queue = self._pool.free_block_queue
        queue.age(now_s)
        pool = queue.counts()
        reserved = victims_for_foreground(running_requests, pool)
        share = START_FREE_SHARE if running_requests else 0.0
        return KvRoom(
            pool=pool.after_taking(reserved, KvClass.NORMAL),
            params=queue.params,
            block_size=self._block_size,
            groups=self._groups,
            start_free_blocks=int(share * pool.total_blocks),
            promised_blocks=sum(self.claim(shadow).missing_blocks for shadow in started),
        )

    def shortage(self, shadow: ShadowRequest, tokens: int, room: KvRoom) -> Shortage:
        """Of a job whose next chunk of so many tokens does not fit."""
        claim = self.claim(shadow)
        if not shadow.started:
            return room.shortage(tokens, claim, shadow.hit.shadow_blocks)
        groups = self._manager.get_blocks(shadow.request.request_id).blocks
        at_most = min(sum(map(len, groups)), room.pool.used_shadow_blocks)
        found = room.shortage(tokens, claim, at_most)
        if found is not Shortage.TRUNCATED_BY_CAP:
            return found
        # Now count: some of its blocks may be of the normal class, hit or promoted.
        own_blocks = self._pool.free_block_queue.shadow_blocks_of(groups)
        return room.shortage(tokens, claim, own_blocks)


def blocks_of(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)
