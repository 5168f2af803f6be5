"""Follows the KV pool of a played scheduler from outside: whose each block is, and since when.

A block that a shadow request was given (not one that it found in the cache) is of the shadow class
until a foreground request holds it, its entry goes, or it is given to somebody else. This is said
here once more, independently of the queue under test, which keeps its own account of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.engine.played import BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm.v1.core.sched.output import SchedulerOutput

    from tests.engine.played import Played

MOMENT_S = 1e-9


@dataclass
class KvWatch:
    """Of one run; `before` and `after` each step that is built."""

    cap_blocks: int
    idle_age_s: float
    shadow_class: set[int] = field(default_factory=set)
    most_shadow_blocks: int = 0
    displaced_entries: int = 0
    """By shadow work."""
    promoted_blocks: int = 0
    _free_since_s: dict[int, float] = field(default_factory=dict)
    """At the latest since the look before the one that found it free."""
    _looked_s: float = 0.0
    _entries: dict[int, bytes] = field(default_factory=dict)
    """Of blocks, before the step."""

    def attach(self, run: Played) -> None:
        run.before.append(self.before)
        run.watch.append(self.after)

    def before(self, run: Played) -> None:
        self._look(run)
        blocks = _pool(run).blocks
        self._entries = {
            block.block_id: block.block_hash for block in blocks if block.block_hash is not None
        }

    def after(self, run: Played, output: SchedulerOutput) -> None:
        given = _given(output)
        self._check_order(run, given)
        for name in run.scheduler.requests:
            if not run.is_shadow(name):
                found = self.shadow_class.intersection(run.blocks_of(name))
                self.promoted_blocks += len(found - set(given))
                self.shadow_class -= found
        for block_id, name in given.items():
            if run.is_shadow(name):
                self._displaced(run, block_id)
                self.shadow_class.add(block_id)
        self._look(run)
        self.most_shadow_blocks = max(self.most_shadow_blocks, len(self.shadow_class))
        assert len(self.shadow_class) <= self.cap_blocks, len(self.shadow_class)
        check_pool(run)

    def _check_order(self, run: Played, given: dict[int, str]) -> None:
        """Foreground takes no normal entry while one of shadow work is to be had."""
        passed_over = [
            block_id
            for block_id in self.shadow_class & self._entries.keys() & self._free_since_s.keys()
            if _pool(run).blocks[block_id].ref_cnt == 0
        ]
        for block_id, name in given.items():
            is_normal_entry = block_id in self._entries and block_id not in self.shadow_class
            if is_normal_entry and not run.is_shadow(name):
                assert not passed_over, (name, block_id, passed_over)

    def _displaced(self, run: Played, block_id: int) -> None:
        if block_id not in self._entries:
            return
        self.displaced_entries += 1
        assert block_id in self._free_since_s, "an entry that was in use when the step was planned"
        idle_s = run.now_s - self._free_since_s[block_id]
        assert idle_s >= self.idle_age_s - MOMENT_S, f"an entry that was used {idle_s} s ago"

    def _look(self, run: Played) -> None:
        for block in _pool(run).blocks:
            if block.ref_cnt > 0 or block.is_null:
                self._free_since_s.pop(block.block_id, None)
            elif block.block_id not in self._free_since_s:
                self._free_since_s[block.block_id] = self._looked_s
            if block.ref_cnt == 0 and block.block_hash is None:
                self.shadow_class.discard(block.block_id)
        self._looked_s = run.now_s


def check_pool(run: Played, others: Iterable[int] = ()) -> None:
    """Every block is free or held, by a request or by `others`, as often as it is counted."""
    holders: Counter[int] = Counter(others)
    for name in run.scheduler.requests:
        holders.update(run.blocks_of(name))
    pool = _pool(run)
    free = 0
    for block in pool.blocks:
        if not block.is_null:
            assert block.ref_cnt == holders[block.block_id], (block, holders[block.block_id])
            free += block.ref_cnt == 0
    assert pool.get_num_free_blocks() == free
    listed = [block.block_id for block in pool.free_block_queue.get_all_free_blocks()]
    assert len(listed) == len(set(listed)) == free


def _given(output: SchedulerOutput) -> dict[int, str]:
    """Blocks that the pool handed out in this step, and to whom; not those found in the cache."""
    given: dict[int, str] = {}
    for new in output.scheduled_new_reqs:
        found = new.num_computed_tokens // BLOCK
        given |= dict.fromkeys(new.block_ids[0][found:], new.req_id)
    cached = output.scheduled_cached_reqs
    for index, name in enumerate(cached.req_ids):
        blocks = cached.new_block_ids[index]
        if blocks is not None:
            found = cached.num_computed_tokens[index] // BLOCK
            resumed = name in cached.resumed_req_ids
            given |= dict.fromkeys(blocks[0][found if resumed else 0 :], name)
    return given


def _pool(run: Played) -> Any:
    return run.scheduler.kv_cache_manager.block_pool
