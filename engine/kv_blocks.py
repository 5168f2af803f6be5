"""The free blocks of vLLM's KV pool with two eviction classes, shadow and normal.

A block that a shadow request takes is of the shadow class until a normal or routed request hits it.
Instead of one queue there are several, in the order in which normal traffic takes them: blocks
without a cache entry, shadow entries, normal entries, each class least recently used first. A class
is split in two by its idle age, so that what shadow work may displace is a count: one queue per
class would have to be searched for the age in every step. policy.kv_class decides on the counts.

Host: engine.kv_pool."""

from __future__ import annotations

from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

from policy.kv_class import (
    KvClassParams,
    KvPool,
    PrefixHit,
    class_after_hit,
    is_idle,
    victims_for_shadow,
)
from policy.vocabulary import KvClass, RequestClass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

IN_ORDER = UNCACHED, IDLE_SHADOW, RECENT_SHADOW, IDLE_NORMAL, RECENT_NORMAL = range(5)
"""The lists, in the order in which normal traffic empties them (victims_for_foreground)."""
SPLIT = ((RECENT_SHADOW, IDLE_SHADOW), (RECENT_NORMAL, IDLE_NORMAL))
_place_in_memory = attrgetter("block_id")
AGED_PER_CALL = 256
"""Entries of a class that become idle in one step, at most: a step's cost has a limit. Each block
pays once for each time it is freed, and a count that lags behind only makes shadow work wait."""


class TwoClassQueue:
    """The interface of vLLM's FreeKVCacheBlockQueue. Every operation is O(1) per block."""

    def __init__(
        self,
        blocks: list[KVCacheBlock],
        total_blocks: int,
        params: KvClassParams,
        clock: Callable[[], float],
    ) -> None:
        """`blocks`: the free ones, without entries."""
        self.params = params
        self.taker: RequestClass | None = None
        """Whose allocation is under way; None counts as normal, but promotes nothing."""
        self.num_free_blocks = len(blocks)
        self.shadow_blocks = 0
        """Of the shadow class, in use or cached."""
        self.promotions = 0
        self.evictions = dict.fromkeys(KvClass, 0)
        self._clock = clock
        self._total_blocks = total_blocks
        self._lists = [FreeKVCacheBlockQueue(blocks if at == UNCACHED else []) for at in IN_ORDER]
        # Side arrays by block id; list and time mean something for free blocks only.
        self._is_shadow = bytearray(total_blocks)
        self._list_of = bytearray(total_blocks)
        self._last_use_s = [0.0] * total_blocks

    # What the policy is asked with

    @property
    def cached_shadow_blocks(self) -> int:
        return self._count(IDLE_SHADOW) + self._count(RECENT_SHADOW)

    def counts(self) -> KvPool:
        uncached, idle_shadow, recent_shadow, idle_normal, recent_normal = (
            free.num_free_blocks for free in self._lists
        )
        return KvPool(
            total_blocks=self._total_blocks,
            shadow_blocks=self.shadow_blocks,
            uncached_blocks=uncached,
            cached_shadow_blocks=idle_shadow + recent_shadow,
            idle_shadow_blocks=idle_shadow,
            cached_normal_blocks=idle_normal + recent_normal,
            idle_normal_blocks=idle_normal,
        )

    def hit_of(self, groups: Iterable[Iterable[KVCacheBlock]]) -> PrefixHit:
        """What a prefix found in the cache means for a shadow request that takes it into use."""
        shadow_blocks, free = 0, [0] * len(IN_ORDER)
        for group in groups:
            for block in group:
                if block.is_null:
                    continue
                shadow_blocks += self._is_shadow[block.block_id]
                if block.ref_cnt == 0:
                    free[self._list_of[block.block_id]] += 1
        return PrefixHit(
            shadow_blocks=shadow_blocks,
            cached_shadow_blocks=free[IDLE_SHADOW] + free[RECENT_SHADOW],
            idle_shadow_blocks=free[IDLE_SHADOW],
            cached_normal_blocks=free[IDLE_NORMAL] + free[RECENT_NORMAL],
            idle_normal_blocks=free[IDLE_NORMAL],
        )

    def shadow_blocks_of(self, groups: Iterable[Iterable[KVCacheBlock]]) -> int:
        return sum(self._is_shadow[block.block_id] for group in groups for block in group)

    # Changes of class and age

    def promote(self, blocks: Sequence[KVCacheBlock]) -> None:
        """`taker` hits them."""
        if (
            self.taker is None
            or not self.shadow_blocks
            or class_after_hit(KvClass.SHADOW, self.taker) is KvClass.SHADOW
        ):
            return
        for block in blocks:
            if self._is_shadow[block.block_id]:
                self._make_normal(block)
                self.promotions += 1

    def age(self, now_s: float) -> None:
        for recent, idle in SPLIT:
            aged = 0
            for block in self._lists[recent].iter_blocks_after(None):
                idle_s = now_s - self._last_use_s[block.block_id]
                if aged == AGED_PER_CALL or not is_idle(idle_s, self.params):
                    break
                aged += 1
            self._move(self._lists[recent].popleft_n(aged), idle)

    def change(self, params: KvClassParams) -> None:
        """Other parameters from now on. Once in a while: this one goes through the whole pool."""
        self.params = params
        for recent, idle in SPLIT:
            entries = [*self._lists[idle].get_all_free_blocks()]
            entries += self._lists[recent].get_all_free_blocks()
            self._lists[idle], self._lists[recent] = (FreeKVCacheBlockQueue([]) for _ in range(2))
            self._move(entries, recent)

    def oldest_shadow(self, blocks: int) -> list[KVCacheBlock]:
        return list(islice(self._after(IDLE_SHADOW, None, RECENT_SHADOW), blocks))

    def lost_entry(self, block: KVCacheBlock) -> None:
        """A free block has no cache entry any more."""
        self.remove(block)
        self.prepend_n([block])

    # vLLM's interface

    def popleft(self) -> KVCacheBlock:
        if not self.num_free_blocks:
            raise ValueError("No free blocks available")
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """The same blocks as vLLM's queue would give, in rising order.

        A request's blocks come back last one first, so that after one lap of the pool vLLM hands
        them out falling. NIXL merges neighbours into one descriptor only if they rise on both
        sides: of P and D in different laps, none."""
        uncached = self._lists[UNCACHED]
        if n == 1 and uncached.num_free_blocks and self.taker is not RequestClass.SHADOW:
            # What a running request needs now and then, the short way.
            self.num_free_blocks -= 1
            one: list[KVCacheBlock] = uncached.popleft_n(1)
            return one
        blocks = self._take_for_shadow(n) if self.taker is RequestClass.SHADOW else []
        # A shadow that is short here never was: its room is checked first (engine.kv_pool). Should
        # vLLM ask for more, a live engine with a shadow beyond its share is the lesser harm.
        for at in IN_ORDER:
            if len(blocks) == n:
                break
            blocks += self._take(at, n - len(blocks))
        assert len(blocks) == n, (n, self.counts())
        self.num_free_blocks -= n
        if n > 1:
            blocks.sort(key=_place_in_memory)
        if self.taker is RequestClass.SHADOW:
            for block in blocks:
                self._is_shadow[block.block_id] = 1
            self.shadow_blocks += n
        return blocks

    def remove(self, block: KVCacheBlock) -> None:
        self._lists[self._list_of[block.block_id]].remove(block)
        self.num_free_blocks -= 1

    def append(self, block: KVCacheBlock) -> None:
        self.append_n([block])

    def append_n(self, blocks: list[KVCacheBlock]) -> None:
        """Blocks with an entry, which were in use until now."""
        if not blocks:
            return
        now_s = self._clock()
        for block in blocks:
            self._last_use_s[block.block_id] = now_s
        self.num_free_blocks += len(blocks)
        if not self.shadow_blocks:
            self._move(blocks, RECENT_NORMAL)
            return
        self._move([b for b in blocks if self._is_shadow[b.block_id]], RECENT_SHADOW)
        self._move([b for b in blocks if not self._is_shadow[b.block_id]], RECENT_NORMAL)

    def prepend_n(self, blocks: list[KVCacheBlock]) -> None:
        """Blocks without an entry."""
        for block in blocks:
            self._list_of[block.block_id] = UNCACHED
            if self._is_shadow[block.block_id]:
                self._make_normal(block)
        self._lists[UNCACHED].prepend_n(blocks)
        self.num_free_blocks += len(blocks)

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        return [block for free in self._lists for block in free.get_all_free_blocks()]

    def iter_blocks_after(self, cursor: KVCacheBlock | None) -> Iterator[KVCacheBlock]:
        """In the order in which normal traffic takes them; nothing after a block in use."""
        if cursor is None:
            return self._after(UNCACHED, None, RECENT_NORMAL)
        if cursor.next_free_block is None:
            return iter(())
        return self._after(self._list_of[cursor.block_id], cursor, RECENT_NORMAL)

    # Inside

    def _after(self, first: int, cursor: KVCacheBlock | None, last: int) -> Iterator[KVCacheBlock]:
        for at in range(first, last + 1):
            yield from self._lists[at].iter_blocks_after(cursor)
            cursor = None

    def _count(self, at: int) -> int:
        return self._lists[at].num_free_blocks

    def _move(self, blocks: list[KVCacheBlock], at: int) -> None:
        for block in blocks:
            self._list_of[block.block_id] = at
        self._lists[at].append_n(blocks)

    def _take_for_shadow(self, n: int) -> list[KVCacheBlock]:
        victims = victims_for_shadow(n, self.counts(), self.params)
        blocks = self._take(UNCACHED, victims.uncached)
        blocks += self._take(IDLE_SHADOW, victims.shadow)
        return blocks + self._take(IDLE_NORMAL, victims.normal)

    def _take(self, at: int, at_most: int) -> list[KVCacheBlock]:
        free = self._lists[at]
        blocks: list[KVCacheBlock] = free.popleft_n(min(at_most, free.num_free_blocks))
        if blocks and at != UNCACHED:
            kv_class = KvClass.SHADOW if at in SPLIT[0] else KvClass.NORMAL
            self.evictions[kv_class] += sum(block.block_hash is not None for block in blocks)
            if kv_class is KvClass.SHADOW:
                for block in blocks:
                    self._make_normal(block)
        return blocks

    def _make_normal(self, block: KVCacheBlock) -> None:
        self._is_shadow[block.block_id] = 0
        self.shadow_blocks -= 1

    def check(self) -> None:
        """What must hold between any two calls."""
        seen: set[int] = set()
        for at, free in enumerate(self._lists):
            blocks = free.get_all_free_blocks()
            assert len(blocks) == free.num_free_blocks, at
            times_s = [self._last_use_s[block.block_id] for block in blocks]
            assert at == UNCACHED or times_s == sorted(times_s), (at, times_s)
            for block in blocks:
                assert block.ref_cnt == 0, block
                assert not block.is_null, block
                assert block.block_id not in seen, block
                assert self._list_of[block.block_id] == at, block
                assert self._is_shadow[block.block_id] == (at in SPLIT[0]), block
                seen.add(block.block_id)
        assert len(seen) == self.num_free_blocks, (len(seen), self.num_free_blocks)
        assert sum(self._is_shadow) == self.shadow_blocks, self.shadow_blocks
