"""Shadow KV as a cache class of its own: its cap, what it may displace, who is evicted first.

Pure. Hosts: the block queue of the engine, bench.sim."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from policy.vocabulary import KvClass, RequestClass


class RoomReason(StrEnum):
    """What limits the room of a shadow chunk; also the metric label."""

    CAP = "cap"
    """The class holds its share: a job that needs more is truncated."""
    NOTHING_IDLE = "nothing_idle"
    """What is not free was used too recently."""


class Victim(StrEnum):
    """Where the next block comes from."""

    UNCACHED = "uncached"
    SHADOW = "shadow"
    NORMAL = "normal"
    NONE = "none"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPool:
    """Counts of one instance's blocks."""

    total_blocks: int
    uncached_blocks: int
    """Free, and nothing that could be hit again in them."""
    shadow_blocks: int
    """Of the shadow class, in use or cached."""
    idle_shadow_blocks: int
    """Cached, in nobody's use, and older than the idle age; likewise the next one."""
    idle_normal_blocks: int


@dataclass(frozen=True, slots=True)
class ShadowRoom:
    blocks: int
    limited_by: RoomReason


def cap_blocks(total_blocks: int, kv_cap_share: float) -> int:
    """Most blocks that the shadow class may hold."""
    return int(total_blocks * kv_cap_share)


def shadow_room(pool: KvPool, params: KvClassParams) -> ShadowRoom:
    """Blocks that shadow work may take now. An idle shadow block that makes way for a newer one
    does not count twice against the cap."""
    cap = cap_blocks(pool.total_blocks, params.kv_cap_share)
    under_cap = max(0, cap - pool.shadow_blocks + pool.idle_shadow_blocks)
    displaceable = pool.uncached_blocks + pool.idle_shadow_blocks + pool.idle_normal_blocks
    if under_cap <= displaceable:
        return ShadowRoom(under_cap, RoomReason.CAP)
    return ShadowRoom(displaceable, RoomReason.NOTHING_IDLE)


def victim_for_foreground(uncached: bool, shadow: bool, normal: bool) -> Victim:
    """What a normal or routed request takes next, of what exists unused: shadow entries go before
    any normal one, however recently they were used."""
    if uncached:
        return Victim.UNCACHED
    if shadow:
        return Victim.SHADOW
    return Victim.NORMAL if normal else Victim.NONE


def victim_for_shadow(
    *,
    uncached: bool,
    shadow_idle_s: float | None,
    normal_idle_s: float | None,
    at_cap: bool,
    idle_age_s: float,
) -> Victim:
    """What a shadow chunk takes next. The ages are of the least recently used unused entry of the
    class, None if there is none. At the cap, shadow work can only displace shadow entries."""
    shadow_is_idle = shadow_idle_s is not None and shadow_idle_s > idle_age_s
    if at_cap:
        return Victim.SHADOW if shadow_is_idle else Victim.NONE
    normal_is_idle = normal_idle_s is not None and normal_idle_s > idle_age_s
    return victim_for_foreground(uncached, shadow_is_idle, normal_is_idle)


def class_after_hit(kv_class: KvClass, hit_by: RequestClass) -> KvClass:
    """A normal or routed call that hits a shadow entry promotes it; nothing is ever demoted."""
    return kv_class if hit_by is RequestClass.SHADOW else KvClass.NORMAL
