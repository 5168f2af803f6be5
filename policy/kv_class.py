"""Shadow KV as a cache class of its own: its cap, what it may displace, who is evicted first.

Three kinds of free block: without an entry (`uncached`), with one of the shadow class, with one of
the normal class. Decisions are made on counts, so that none costs more for a larger pool.

Pure. Hosts: engine.kv_blocks, engine.kv_room, bench.sim, which compiles `victims_for_...`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from policy.vocabulary import KvClass, RequestClass


class RoomReason(StrEnum):
    """What limits the room of shadow work; also the metric label."""

    CAP = "cap"
    """The class holds its share of the pool."""
    NOTHING_IDLE = "nothing_idle"
    """What is not free was used too recently."""
    PROMISED = "promised"
    """What is left under the cap is for the jobs that have started: two that each got half of it
    would wait for one another."""
    POOL_FULL = "pool_full"
    """Running requests need the rest: a job that starts now would be dropped at once."""


class Shortage(StrEnum):
    """What becomes of a job that finds no room."""

    TRUNCATED_BY_CAP = "truncated_by_cap"
    """It does not fit even if nothing else is of the shadow class: it ends with what it has."""
    NOT_IDLE_YET = "not_idle_yet"
    """It fits once the cached entries are old enough: it waits."""
    HELD = "held"
    """Others use what it needs: shadows must give way, or it waits for normal traffic."""


class KvLimits(Protocol):
    @property
    def kv_cap_share(self) -> float: ...

    @property
    def idle_age_s(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KvClassParams:
    kv_cap_share: float
    """Largest share of the pool that unpromoted shadow blocks may hold."""
    idle_age_s: float
    """A cached entry that was used within this time is never displaced by shadow work."""

    def __post_init__(self) -> None:
        if not 0 < self.kv_cap_share <= 1:
            raise ValueError(f"shadow.kv_cap_share must be > 0 and <= 1, got {self.kv_cap_share}")
        if not self.idle_age_s >= 0:
            raise ValueError(f"shadow.idle_age_s must be >= 0, got {self.idle_age_s}")


class PrefixHit(NamedTuple):
    """Blocks that a job finds in the prefix cache: it needs them, so it cannot displace them."""

    shadow_blocks: int = 0
    """Of the shadow class, used by others or not."""
    cached_shadow_blocks: int = 0
    """Of those, in nobody's use; they leave the free ones when the job starts."""
    idle_shadow_blocks: int = 0
    """Of those, older than the idle age; likewise the next two."""
    cached_normal_blocks: int = 0
    idle_normal_blocks: int = 0

    @property
    def free_blocks(self) -> int:
        return self.cached_shadow_blocks + self.cached_normal_blocks


NO_HIT = PrefixHit()


class Victims(NamedTuple):
    """Where the blocks of one allocation come from."""

    uncached: int = 0
    shadow: int = 0
    normal: int = 0

    @property
    def blocks(self) -> int:
        return self.uncached + self.shadow + self.normal


class KvPool(NamedTuple):
    """Counts of one instance's blocks."""

    total_blocks: int
    shadow_blocks: int
    """Of the shadow class, in use or cached."""
    uncached_blocks: int
    cached_shadow_blocks: int
    """In nobody's use; those that are older than the idle age follow."""
    idle_shadow_blocks: int
    cached_normal_blocks: int
    idle_normal_blocks: int

    @property
    def free_blocks(self) -> int:
        return self.uncached_blocks + self.cached_shadow_blocks + self.cached_normal_blocks

    @property
    def used_shadow_blocks(self) -> int:
        return self.shadow_blocks - self.cached_shadow_blocks

    @property
    def used_normal_blocks(self) -> int:
        return self.total_blocks - self.free_blocks - self.used_shadow_blocks

    def after_hit(self, hit: PrefixHit) -> KvPool:
        """A job took its prefix into use."""
        if hit.free_blocks == 0:
            return self
        return self._replace(
            cached_shadow_blocks=self.cached_shadow_blocks - hit.cached_shadow_blocks,
            idle_shadow_blocks=self.idle_shadow_blocks - hit.idle_shadow_blocks,
            cached_normal_blocks=self.cached_normal_blocks - hit.cached_normal_blocks,
            idle_normal_blocks=self.idle_normal_blocks - hit.idle_normal_blocks,
        )

    def after_taking(self, victims: Victims, by: KvClass) -> KvPool:
        """The least recently used entries go first, so idle ones before others."""
        if victims.blocks == 0:
            return self
        new_shadow_blocks = victims.blocks if by is KvClass.SHADOW else 0
        return KvPool(
            total_blocks=self.total_blocks,
            shadow_blocks=self.shadow_blocks - victims.shadow + new_shadow_blocks,
            uncached_blocks=self.uncached_blocks - victims.uncached,
            cached_shadow_blocks=self.cached_shadow_blocks - victims.shadow,
            idle_shadow_blocks=max(0, self.idle_shadow_blocks - victims.shadow),
            cached_normal_blocks=self.cached_normal_blocks - victims.normal,
            idle_normal_blocks=max(0, self.idle_normal_blocks - victims.normal),
        )

    def aged(self) -> KvPool:
        """Some time later, if nobody touches it."""
        return self._replace(
            idle_shadow_blocks=self.cached_shadow_blocks,
            idle_normal_blocks=self.cached_normal_blocks,
        )


class ShadowRoom(NamedTuple):
    blocks: int
    limited_by: RoomReason


class Start(NamedTuple):
    """A job that has not started, and what it would start beside."""

    missing_blocks: int
    promised_blocks: int
    """That the started jobs still miss."""
    spare_blocks: int
    """That must be free once the job holds its prefix."""


def is_idle(idle_s: float, params: KvLimits) -> bool:
    return idle_s > params.idle_age_s


def cap_blocks(total_blocks: int, kv_cap_share: float) -> int:
    """Most blocks that the shadow class may hold."""
    return int(total_blocks * kv_cap_share)


def shadow_room(pool: KvPool, params: KvClassParams) -> ShadowRoom:
    """Blocks that shadow work may take now. Under the cap it may take any free block whose entry,
    if it has one, is idle; beyond it can only recycle idle entries of its own class."""
    growth = max(0, cap_blocks(pool.total_blocks, params.kv_cap_share) - pool.shadow_blocks)
    elsewhere = pool.uncached_blocks + pool.idle_normal_blocks
    limited_by = RoomReason.CAP if growth <= elsewhere else RoomReason.NOTHING_IDLE
    return ShadowRoom(max(0, min(growth, elsewhere) + pool.idle_shadow_blocks), limited_by)


def start_room(pool: KvPool, start: Start, params: KvClassParams) -> ShadowRoom:
    """`shadow_room` for a job that has not started; `pool` after its hit."""
    if pool.free_blocks < start.spare_blocks:
        return ShadowRoom(0, RoomReason.POOL_FULL)
    cap = cap_blocks(pool.total_blocks, params.kv_cap_share)
    in_the_end = pool.used_shadow_blocks + start.promised_blocks + start.missing_blocks
    if start.promised_blocks > 0 and in_the_end > cap:
        return ShadowRoom(0, RoomReason.PROMISED)
    return shadow_room(pool, params)


def victims_for_foreground(blocks: int, pool: KvPool) -> Victims:
    """What normal and routed requests take: shadow entries go before any normal one, however
    recently they were used. Fewer than asked for if there are not so many."""
    uncached = min(blocks, pool.uncached_blocks)
    shadow = min(blocks - uncached, pool.cached_shadow_blocks)
    normal = min(blocks - uncached - shadow, pool.cached_normal_blocks)
    return Victims(uncached, shadow, normal)


def victims_cold_first(blocks: int, pool: KvPool) -> Victims:
    """Another order for normal and routed requests: what shadow work itself may displace goes
    before shadows do. Else a shadow that took the place of an old entry loses it to the next
    request, while older entries stay."""
    uncached = min(blocks, pool.uncached_blocks)
    cold = min(blocks - uncached, pool.idle_normal_blocks)
    shadow = min(blocks - uncached - cold, pool.cached_shadow_blocks)
    warm = min(blocks - uncached - cold - shadow, pool.cached_normal_blocks - cold)
    return Victims(uncached, shadow, cold + warm)


def victims_for_shadow(blocks: int, pool: KvPool, params: KvLimits) -> Victims:
    """What shadow work takes; fewer than asked for beyond its room."""
    growth = max(0, cap_blocks(pool.total_blocks, params.kv_cap_share) - pool.shadow_blocks)
    uncached = min(blocks, pool.uncached_blocks, growth)
    shadow = min(blocks - uncached, pool.idle_shadow_blocks)
    normal = min(blocks - uncached - shadow, pool.idle_normal_blocks, growth - uncached)
    return Victims(uncached, shadow, normal)


def shortage(blocks: int, own_shadow_blocks: int, room_later: ShadowRoom, cap: int) -> Shortage:
    """For a job that misses so many blocks for its next chunk. `room_later`: its room once every
    cached entry is idle."""
    if own_shadow_blocks + blocks > cap:
        return Shortage.TRUNCATED_BY_CAP
    return Shortage.NOT_IDLE_YET if room_later.blocks >= blocks else Shortage.HELD


def class_after_hit(kv_class: KvClass, hit_by: RequestClass) -> KvClass:
    """A normal or routed call that hits a shadow entry promotes it; nothing is ever demoted."""
    return kv_class if hit_by is RequestClass.SHADOW else KvClass.NORMAL
