"""What a host tier keeps of the KV that leaves an instance's pool: two classes, the shadow entries
evicted first, each class least recently used first.

An entry has a slot of the tier, which holds one KV block. It can be read once its copy has
arrived, and is not evicted while it is written or read. A request names the keys of its prefix from
the head on: of entries that are equally old the tail goes first, for a tail without its head helps
nobody.

Pure. Host: engine.host_manager."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from policy.kv_class import class_after_hit
from policy.vocabulary import KvClass, RequestClass

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

Key = TypeVar("Key")


class LoadReason(StrEnum):
    """What becomes of a hit; also the metric label."""

    LOADED = "loaded"
    TOO_FEW_TOKENS = "too_few_tokens"
    """They are computed sooner than the iteration ends in which they would be copied."""
    LINK_TOO_SLOW = "link_too_slow"
    """The device computes KV faster than the link brings it."""
    OVER_BUDGET = "over_budget"
    """Of a shadow: whoever arrives would wait for it longer than for any chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCost:
    """Of one instance: what a token costs if it is computed, and if it is copied."""

    iteration_s: float
    """A request whose KV is copied is scheduled one iteration later."""
    s_per_computed_token: float
    s_per_copied_token: float


class Stored(NamedTuple, Generic[Key]):
    """What a request may write: its keys that got a slot, and those that were evicted for them."""

    slots: dict[Key, int]
    evicted: list[Key]
    refused: int
    """Keys that found no slot: the last ones of the prefix."""


@dataclass(slots=True)
class Entry:
    slot: int
    kv_class: KvClass
    last_use_s: float
    readers: int = 0
    arrived: bool = False


class HostTier(Generic[Key]):
    """The entries of one tier. Every operation is O(1) per key, beside entries in transfer."""

    def __init__(self, slots: int, idle_age_s: float) -> None:
        assert slots > 0, slots
        self.slots = slots
        self.idle_age_s = idle_age_s
        """Shadow work displaces no entry that was used within this time, as in the pool."""
        self.evictions = dict.fromkeys(KvClass, 0)
        self.promotions = 0
        self._free = list(range(slots - 1, -1, -1))
        self._entries: dict[Key, Entry] = {}
        self._by_use: dict[KvClass, OrderedDict[Key, None]] = {
            kv_class: OrderedDict() for kv_class in KvClass
        }

    def entries(self, kv_class: KvClass) -> int:
        return len(self._by_use[kv_class])

    def has(self, key: Key) -> bool:
        """Whether it is there, or on its way."""
        return key in self._entries

    def can_read(self, key: Key) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.arrived

    # Writing

    def store(
        self, keys: Sequence[Key], taker: RequestClass, now_s: float, own: Container[Key]
    ) -> Stored[Key]:
        """Slots for those of a request's keys that have none. `own`: all keys of that request,
        which are not evicted for others of it."""
        missing = [key for key in keys if key not in self._entries]
        evicted = self._evict(len(missing) - len(self._free), taker, now_s, own)
        kv_class = KvClass.SHADOW if taker is RequestClass.SHADOW else KvClass.NORMAL
        slots: dict[Key, int] = {}
        for key in missing[: len(self._free)]:
            slots[key] = self._free.pop()
            self._entries[key] = Entry(slots[key], kv_class, now_s)
            self._by_use[kv_class][key] = None
        return Stored(slots, evicted, len(missing) - len(slots))

    def arrived(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self._entries[key].arrived = True

    def lost(self, keys: Sequence[Key]) -> None:
        """They were not written after all."""
        for key in keys:
            assert not self._entries[key].arrived, key
            self._remove(key)

    # Reading

    def pin(self, keys: Sequence[Key]) -> list[int]:
        """Their slots, which stay theirs until `unpin`."""
        slots = []
        for key in keys:
            entry = self._entries[key]
            assert entry.arrived, key
            entry.readers += 1
            slots.append(entry.slot)
        return slots

    def unpin(self, keys: Sequence[Key]) -> None:
        for key in keys:
            entry = self._entries[key]
            assert entry.readers > 0, key
            entry.readers -= 1

    def used(self, keys: Sequence[Key], by: RequestClass, now_s: float) -> None:
        """A request found them, here or still in the pool: the newest entries, its head last to
        go. A call takes what a shadow had left into the normal class."""
        for key in reversed(keys):
            entry = self._entries.get(key)
            if entry is None:
                continue
            del self._by_use[entry.kv_class][key]
            kv_class = class_after_hit(entry.kv_class, by)
            self.promotions += kv_class is not entry.kv_class
            entry.kv_class, entry.last_use_s = kv_class, now_s
            self._by_use[kv_class][key] = None

    def clear(self) -> None:
        """Nothing of it may be read any more, whatever is still being copied."""
        self._entries.clear()
        for by_use in self._by_use.values():
            by_use.clear()
        self._free = list(range(self.slots - 1, -1, -1))

    # Inside

    def _evict(
        self, missing_slots: int, taker: RequestClass, now_s: float, own: Container[Key]
    ) -> list[Key]:
        evicted: list[Key] = []
        if missing_slots > 0:
            for key in self._victims(taker, now_s, own):
                evicted.append(key)
                if len(evicted) == missing_slots:
                    break
        for key in evicted:
            self.evictions[self._entries[key].kv_class] += 1
            self._remove(key)
        return evicted

    def _victims(self, taker: RequestClass, now_s: float, own: Container[Key]) -> Iterator[Key]:
        for kv_class in (KvClass.SHADOW, KvClass.NORMAL):
            for key in self._by_use[kv_class]:
                entry = self._entries[key]
                if taker is RequestClass.SHADOW and now_s - entry.last_use_s <= self.idle_age_s:
                    break
                if entry.arrived and not entry.readers and key not in own:
                    yield key

    def _remove(self, key: Key) -> None:
        entry = self._entries.pop(key)
        del self._by_use[entry.kv_class][key]
        self._free.append(entry.slot)

    def check(self) -> None:
        """What must hold between any two calls."""
        slots = [entry.slot for entry in self._entries.values()]
        assert sorted(slots + self._free) == list(range(self.slots)), (slots, self._free)
        assert sum(map(len, self._by_use.values())) == len(self._entries), self._by_use
        for kv_class, by_use in self._by_use.items():
            times_s = [self._entries[key].last_use_s for key in by_use]
            assert times_s == sorted(times_s), (kv_class, times_s)
            assert all(self._entries[key].kv_class is kv_class for key in by_use), kv_class


def load_or_compute(tokens: int, cost: LoadCost) -> LoadReason:
    """Whether so many tokens are copied from the tier, or computed again."""
    gain_s = cost.s_per_computed_token - cost.s_per_copied_token
    if gain_s <= 0:
        return LoadReason.LINK_TOO_SLOW
    return LoadReason.LOADED if tokens * gain_s > cost.iteration_s else LoadReason.TOO_FEW_TOKENS


def shadow_load(tokens: int, cost: LoadCost, budget_s: float) -> LoadReason:
    """The same for a shadow, in an iteration that may last so long: a load is never cut."""
    if tokens * cost.s_per_copied_token > budget_s:
        return LoadReason.OVER_BUDGET
    return load_or_compute(tokens, cost)
