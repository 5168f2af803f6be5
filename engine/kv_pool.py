"""vLLM's pool of KV blocks with the two-class queue in it, and who takes from it.

vLLM's pool is not told which request an allocation is for: `begin` and `end` say so
(engine.shadow_requests calls them around each allocation). What is taken outside of one counts as
normal and promotes nothing.

Host: engine.kv_room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

from engine.compat import UnsupportedVllm
from engine.kv_blocks import TwoClassQueue
from policy.kv_class import KvClassParams, cap_blocks, shadow_room
from policy.vocabulary import RequestClass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class TwoClassPool(BlockPool):
    """An existing pool becomes one by assignment of its class; references to it stay valid."""

    free_block_queue: TwoClassQueue
    shadow_limit_blocks: int | None = None
    """While a shadow request allocates: how many blocks it is told are free."""

    def begin(self, taker: RequestClass, prefix: Iterable[Iterable[KVCacheBlock]] = ()) -> None:
        """`taker` allocates, until `end`. `prefix`: what it found in the cache, if it starts."""
        queue = self.free_block_queue
        queue.taker = taker
        if taker is RequestClass.SHADOW:
            hit = queue.hit_of(prefix)
            room = shadow_room(queue.counts().after_hit(hit), queue.params)
            # vLLM counts the free blocks of the prefix among those that it needs.
            self.shadow_limit_blocks = room.blocks + hit.free_blocks

    def end(self) -> None:
        self.free_block_queue.taker = self.shadow_limit_blocks = None

    def change(self, params: KvClassParams) -> None:
        """A lower cap holds at once for what is cached; what is in use is left to end."""
        queue = self.free_block_queue
        queue.change(params)
        excess = queue.shadow_blocks - cap_blocks(self.num_gpu_blocks, params.kv_cap_share)
        if excess > 0:
            self.evict_blocks({block.block_id for block in queue.oldest_shadow(excess)})

    def get_num_free_blocks(self) -> int:
        free_blocks: int = super().get_num_free_blocks()
        if self.shadow_limit_blocks is None:
            return free_blocks
        return min(free_blocks, self.shadow_limit_blocks)

    def touch(self, blocks: Sequence[KVCacheBlock]) -> None:
        super().touch(blocks)
        self.free_block_queue.promote(blocks)

    def evict_blocks(self, block_ids: set[int]) -> None:
        super().evict_blocks(block_ids)
        for block_id in block_ids:
            block: KVCacheBlock = self.blocks[block_id]
            if block.ref_cnt == 0 and not block.is_null:
                self.free_block_queue.lost_entry(block)

    def reset_prefix_cache(self) -> bool:
        done: bool = super().reset_prefix_cache()
        if done:
            for block in self.free_block_queue.get_all_free_blocks():
                self.free_block_queue.lost_entry(block)
        return done


def install(pool: BlockPool, params: KvClassParams, clock: Callable[[], float]) -> TwoClassPool:
    """Before the first allocation. Raises UnsupportedVllm."""
    names = {name for name in vars(FreeKVCacheBlockQueue) if not name.startswith("_")}
    missing = sorted(name for name in names if not hasattr(TwoClassQueue, name))
    if missing:
        raise UnsupportedVllm(f"vLLM's queue of free KV blocks has {missing}, which ours lacks")
    free = pool.free_block_queue.get_all_free_blocks()
    pool.free_block_queue = TwoClassQueue(free, pool.num_gpu_blocks, params, clock)
    become(pool, TwoClassPool)
    assert isinstance(pool, TwoClassPool)
    return pool


def become(thing: object, kind: type) -> None:
    """Changes the class of an existing object; references to it stay valid.

    CPython leaves such an object with an attribute table for which its interpreter has no fast
    path: all that vLLM itself reads of `self` would cost several times more, in every step for
    every running request. A dict of the object's own has one."""
    thing.__class__ = kind
    thing.__dict__ = {**thing.__dict__}
