"""The two-class queue on vLLM's real blocks: eviction order, ages, classes, integrity."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue, KVCacheBlock

from engine.kv_blocks import AGED_PER_CALL, TwoClassQueue
from policy.kv_class import KvClassParams
from policy.vocabulary import KvClass, RequestClass

pytestmark = pytest.mark.vllm_cpu

IDLE_AGE_S = 5.0


@dataclass
class Rig:
    """A queue, its blocks, and what a pool does with them: `use` takes, `free` gives back."""

    total: int = 20
    cap_share: float = 0.5
    now_s: float = 100.0
    blocks: list[KVCacheBlock] = field(init=False)
    queue: TwoClassQueue = field(init=False)

    def __post_init__(self) -> None:
        self.blocks = [KVCacheBlock(block_id) for block_id in range(self.total)]
        params = KvClassParams(kv_cap_share=self.cap_share, idle_age_s=IDLE_AGE_S)
        self.queue = TwoClassQueue(self.blocks, self.total, params, lambda: self.now_s)

    def use(self, n: int, by: RequestClass | None = RequestClass.NORMAL) -> list[int]:
        self.queue.taker = by
        taken = self.queue.popleft_n(n)
        self.queue.taker = None
        for block in taken:
            block.ref_cnt = 1
            block.reset_hash()
        self.queue.check()
        return [block.block_id for block in taken]

    def free(self, ids: list[int], *, cached: bool = True) -> None:
        for block in self._of(ids):
            block.ref_cnt = 0
            if cached and block.block_hash is None:
                block.set_block_hash(b"hash")
        (self.queue.append_n if cached else self.queue.prepend_n)(self._of(ids))
        self.queue.check()

    def hit(self, ids: list[int], by: RequestClass) -> None:
        self.queue.taker = by
        for block in self._of(ids):
            if block.ref_cnt == 0:
                self.queue.remove(block)
            block.ref_cnt += 1
        self.queue.promote(self._of(ids))
        self.queue.taker = None
        self.queue.check()

    def order(self) -> list[int]:
        return [block.block_id for block in self.queue.get_all_free_blocks()]

    def later(self, seconds: float) -> None:
        self.now_s += seconds
        self.queue.age(self.now_s)
        self.queue.check()

    def _of(self, ids: list[int]) -> list[KVCacheBlock]:
        return [self.blocks[block_id] for block_id in ids]


def full_of_both() -> Rig:
    """Blocks 0 to 9 hold normal entries, 10 to 19 shadow ones, all used just now."""
    rig = Rig()
    normal, shadow = rig.use(10), rig.use(10, RequestClass.SHADOW)
    rig.free(normal)
    rig.later(1.0)
    rig.free(shadow)
    return rig


def test_it_has_all_that_vllms_queue_has() -> None:
    names = {name for name in vars(FreeKVCacheBlockQueue) if not name.startswith("_")}
    assert names <= set(dir(TwoClassQueue))
    assert hasattr(Rig().queue, "num_free_blocks")


def test_normal_traffic_takes_uncached_blocks_then_shadow_entries_then_normal_ones() -> None:
    rig = full_of_both()
    assert rig.use(3) == [10, 11, 12]
    rig.free([11], cached=False)
    assert rig.use(8) == [11, *range(13, 20)]
    assert rig.use(2) == [0, 1]
    assert rig.queue.evictions == {KvClass.SHADOW: 10, KvClass.NORMAL: 2}
    assert rig.queue.shadow_blocks == 0


def test_within_a_class_the_least_recently_used_goes_first() -> None:
    rig = full_of_both()
    rig.hit([10, 11], RequestClass.SHADOW)
    rig.hit([0, 1], RequestClass.NORMAL)
    rig.free([11, 10])
    rig.free([1, 0])
    assert rig.order() == [*range(12, 20), 11, 10, *range(2, 10), 1, 0]


def test_blocks_without_an_entry_are_taken_again_first_and_have_no_class() -> None:
    rig = Rig()
    ids = rig.use(4, RequestClass.SHADOW)
    assert rig.queue.shadow_blocks == 4
    rig.free(ids, cached=False)
    assert rig.queue.shadow_blocks == 0
    assert rig.use(4) == ids
    assert rig.queue.evictions == {KvClass.SHADOW: 0, KvClass.NORMAL: 0}


@pytest.mark.parametrize(("age_s", "idle"), [(4.999, 0), (5.0, 0), (5.001, 10)])
def test_an_entry_is_idle_only_beyond_the_age(age_s: float, idle: int) -> None:
    rig = Rig()
    rig.free(rig.use(10))
    rig.now_s = 100.0
    rig.later(age_s)
    assert rig.queue.counts().idle_normal_blocks == idle


def test_shadow_work_takes_no_entry_that_is_not_idle() -> None:
    rig = Rig()
    rig.free(rig.use(18))
    assert rig.use(2, RequestClass.SHADOW) == [18, 19]
    assert rig.queue.counts().uncached_blocks == 0
    rig.later(5.1)
    rig.hit([0], RequestClass.NORMAL)
    rig.free([0])
    assert rig.use(8, RequestClass.SHADOW) == list(range(1, 9))
    assert rig.queue.evictions[KvClass.NORMAL] == 8


def test_at_the_cap_shadow_work_recycles_idle_entries_of_its_own_class() -> None:
    rig = Rig()
    rig.free(rig.use(6, RequestClass.SHADOW))
    rig.later(5.1)
    rig.use(4, RequestClass.SHADOW)
    assert rig.use(3, RequestClass.SHADOW) == [0, 1, 2]
    assert rig.queue.shadow_blocks == 10
    assert rig.queue.counts().uncached_blocks == 10


@pytest.mark.parametrize("by", [RequestClass.NORMAL, RequestClass.ROUTED])
@pytest.mark.parametrize("in_use", [False, True])
def test_a_hit_by_normal_traffic_promotes(by: RequestClass, in_use: bool) -> None:
    rig = Rig()
    ids = rig.use(4, RequestClass.SHADOW)
    if not in_use:
        rig.free(ids)
    rig.hit(ids[:3], by)
    assert (rig.queue.promotions, rig.queue.shadow_blocks) == (3, 1)
    rig.free(ids[:3])
    assert rig.queue.counts().cached_normal_blocks == 3


def test_a_hit_by_shadow_work_changes_no_class() -> None:
    rig = full_of_both()
    rig.hit([0, 10], RequestClass.SHADOW)
    assert (rig.queue.promotions, rig.queue.shadow_blocks) == (0, 10)
    rig.free([0, 10])
    assert rig.order() == [*range(11, 20), 10, *range(1, 10), 0]


def test_what_nobody_in_particular_takes_counts_as_normal_and_promotes_nothing() -> None:
    rig = full_of_both()
    rig.queue.promote([rig.blocks[10]])
    assert rig.queue.shadow_blocks == 10
    assert rig.use(1, by=None) == [10]
    assert rig.queue.shadow_blocks == 9


def test_the_work_of_one_step_has_a_limit() -> None:
    rig = Rig(total=3 * AGED_PER_CALL)
    rig.free(rig.use(rig.total))
    rig.later(6.0)
    assert rig.queue.counts().idle_normal_blocks == AGED_PER_CALL
    rig.later(0.0)
    assert rig.queue.counts().idle_normal_blocks == 2 * AGED_PER_CALL


def test_another_idle_age_holds_for_what_is_cached_already() -> None:
    rig = full_of_both()
    rig.later(6.0)
    assert rig.queue.counts().idle_normal_blocks == 10
    before = rig.order()
    rig.queue.change(KvClassParams(kv_cap_share=0.5, idle_age_s=6.5))
    rig.later(0.0)
    counts = rig.queue.counts()
    assert (counts.idle_shadow_blocks, counts.idle_normal_blocks) == (0, 10)
    assert rig.order() == before


def test_blocks_can_be_walked_in_eviction_order_from_any_free_one() -> None:
    rig = full_of_both()
    order = rig.order()

    def after(cursor: KVCacheBlock | None) -> list[int]:
        return [block.block_id for block in rig.queue.iter_blocks_after(cursor)]

    assert after(None) == order
    for place, block_id in enumerate(order):
        assert after(rig.blocks[block_id]) == order[place + 1 :]
    taken = rig.use(1)
    assert after(rig.blocks[taken[0]]) == []


def test_blocks_of_one_request_rise_in_every_lap_of_the_pool() -> None:
    """NIXL merges only such ones into one descriptor (tests/kv_transport/test_nixl_link.py)."""
    rig = Rig(cap_share=1.0)
    for by in (RequestClass.NORMAL, RequestClass.SHADOW, RequestClass.ROUTED) * 2:
        first, second = rig.use(8, by), rig.use(12, by)
        assert (first, second) == (sorted(first), sorted(second))
        assert sorted(first + second) == list(range(20))
        # As vLLM frees a request: its last block first.
        rig.free(first[::-1])
        rig.free(second[::-1])
        rig.later(IDLE_AGE_S + 1)


def test_an_empty_queue_gives_nothing() -> None:
    rig = Rig(total=1)
    assert rig.queue.popleft() is rig.blocks[0]
    with pytest.raises(ValueError, match="No free blocks"):
        rig.queue.popleft()


class Model:
    """The same by brute force: one record per block, searched from end to end."""

    def __init__(self, total: int, cap: int) -> None:
        self.cap = cap
        self.shadow = [False] * total
        self.free_since: list[tuple[int, float] | None] = [(0, 0.0)] * total
        self.cached = [False] * total
        self.used_at = 0

    def victims(self, by: RequestClass, now_s: float) -> list[int]:
        """Every block that may be taken next, best first."""
        free = [index for index, since in enumerate(self.free_since) if since is not None]

        def rank(index: int) -> tuple[int, int, int]:
            since = self.free_since[index]
            assert since is not None
            if not self.cached[index]:
                return 0, -since[0], index  # the last one that came back is used again first
            return 1 if self.shadow[index] else 2, since[0], index

        def allowed(index: int) -> bool:
            since = self.free_since[index]
            assert since is not None
            idle = not self.cached[index] or now_s - since[1] > IDLE_AGE_S
            recycles = self.cached[index] and self.shadow[index]
            return idle and (recycles or sum(self.shadow) < self.cap)

        if by is RequestClass.SHADOW:
            free = [index for index in free if allowed(index)]
        return sorted(free, key=rank)

    def take(self, index: int, by: RequestClass) -> None:
        self.free_since[index] = None
        self.cached[index] = False
        self.shadow[index] = by is RequestClass.SHADOW

    def free_entries(self) -> list[int]:
        return [i for i, since in enumerate(self.free_since) if since and self.cached[i]]

    def hit(self, index: int, by: RequestClass) -> None:
        self.free_since[index] = None
        self.shadow[index] &= by is RequestClass.SHADOW

    def give(self, index: int, now_s: float, *, cached: bool) -> None:
        self.used_at += 1
        self.free_since[index] = (self.used_at, now_s)
        self.cached[index] = cached
        self.shadow[index] &= cached


class Both:
    """Does the same with the queue and with the model, and compares."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.rig = Rig(total=40, cap_share=0.3)
        self.model = Model(40, cap=12)
        self.used: list[int] = []

    def take(self) -> None:
        by = self.chance.choice([RequestClass.NORMAL, RequestClass.SHADOW, RequestClass.SHADOW])
        expected: list[int] = []
        for _ in range(self.chance.randrange(1, 6)):
            best = self.model.victims(by, self.rig.now_s)
            if best:
                self.model.take(best[0], by)
                expected.append(best[0])
        assert self.rig.use(len(expected), by) == sorted(expected)
        self.used += expected

    def give(self) -> None:
        if self.used:
            index = self.used.pop(self.chance.randrange(len(self.used)))
            cached = self.chance.random() < 0.8
            self.rig.free([index], cached=cached)
            self.model.give(index, self.rig.now_s, cached=cached)

    def hit(self) -> None:
        ids = self.model.free_entries()
        if ids:
            index = self.chance.choice(ids)
            by = self.chance.choice([RequestClass.ROUTED, RequestClass.SHADOW])
            self.rig.hit([index], by)
            self.model.hit(index, by)
            self.rig.blocks[index].reset_hash()
            self.used.append(index)

    def change(self) -> None:
        self.rig.queue.change(self.rig.queue.params)
        self.rig.later(0.0)

    def check(self) -> None:
        assert self.rig.queue.shadow_blocks == sum(self.model.shadow) <= 12
        free = sum(since is not None for since in self.model.free_since)
        assert self.rig.queue.num_free_blocks == free


@pytest.mark.parametrize("seed", range(6))
def test_it_does_what_a_naive_model_does(seed: int) -> None:
    both = Both(seed)
    actions = [both.take, both.give, both.hit, both.change]
    for _ in range(1000):
        both.rig.later(both.chance.choice([0.0, 0.0, 0.3, 2.0]))
        both.chance.choices(actions, weights=(6, 12, 3, 1))[0]()
        both.check()
    assert all(both.rig.queue.evictions.values())
    assert both.rig.queue.promotions
