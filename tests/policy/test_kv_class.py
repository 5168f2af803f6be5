"""The cap, the idle age and the eviction order, as tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.kv_class import (
    KvClassParams,
    KvPool,
    RoomReason,
    ShadowRoom,
    Victim,
    cap_blocks,
    class_after_hit,
    shadow_room,
    victim_for_foreground,
    victim_for_shadow,
)
from policy.vocabulary import KvClass, RequestClass

PARAMS = KvClassParams(kv_cap_share=0.25, idle_age_s=5.0)


def a_pool(
    uncached: int = 0, shadow: int = 0, idle_shadow: int = 0, idle_normal: int = 0
) -> KvPool:
    return KvPool(
        total_blocks=100,
        uncached_blocks=uncached,
        shadow_blocks=shadow,
        idle_shadow_blocks=idle_shadow,
        idle_normal_blocks=idle_normal,
    )


@pytest.mark.parametrize(
    ("pool", "blocks", "limited_by"),
    [
        (a_pool(uncached=100), 25, RoomReason.CAP),
        (a_pool(uncached=50, shadow=20), 5, RoomReason.CAP),
        (a_pool(uncached=50, shadow=25), 0, RoomReason.CAP),
        (a_pool(uncached=50, shadow=40), 0, RoomReason.CAP),
        (a_pool(uncached=3, idle_normal=4), 7, RoomReason.NOTHING_IDLE),
        (a_pool(), 0, RoomReason.NOTHING_IDLE),
        # At the cap, but some of it is old enough to make way for newer shadow work.
        (a_pool(uncached=50, shadow=25, idle_shadow=10), 10, RoomReason.CAP),
        (a_pool(uncached=1, shadow=20, idle_shadow=10), 11, RoomReason.NOTHING_IDLE),
    ],
)
def test_room(pool: KvPool, blocks: int, limited_by: RoomReason) -> None:
    assert shadow_room(pool, PARAMS) == ShadowRoom(blocks, limited_by)


@given(
    uncached=st.integers(0, 100),
    shadow=st.integers(0, 100),
    idle_share=st.floats(0, 1),
    idle_normal=st.integers(0, 100),
)
def test_room_never_exceeds_the_cap_or_what_may_be_displaced(
    uncached: int, shadow: int, idle_share: float, idle_normal: int
) -> None:
    idle_shadow = int(shadow * idle_share)
    blocks = shadow_room(a_pool(uncached, shadow, idle_shadow, idle_normal), PARAMS).blocks
    assert 0 <= blocks <= uncached + idle_shadow + idle_normal
    assert blocks == 0 or shadow - idle_shadow + blocks <= cap_blocks(100, 0.25)


@pytest.mark.parametrize(
    ("uncached", "shadow", "normal", "victim"),
    [
        (True, True, True, Victim.UNCACHED),
        (False, True, True, Victim.SHADOW),
        (False, False, True, Victim.NORMAL),
        (False, False, False, Victim.NONE),
    ],
)
def test_foreground_evicts_shadow_entries_before_normal_ones(
    uncached: bool, shadow: bool, normal: bool, victim: Victim
) -> None:
    assert victim_for_foreground(uncached, shadow, normal) is victim


@pytest.mark.parametrize(
    ("uncached", "shadow_idle_s", "normal_idle_s", "at_cap", "victim"),
    [
        (True, 9.0, 9.0, False, Victim.UNCACHED),
        (False, 9.0, 99.0, False, Victim.SHADOW),
        (False, 5.0, 9.0, False, Victim.NORMAL),
        (False, None, 9.0, False, Victim.NORMAL),
        (False, 5.0, 5.0, False, Victim.NONE),
        (False, None, None, False, Victim.NONE),
        (True, 9.0, 9.0, True, Victim.SHADOW),
        (True, 5.0, 9.0, True, Victim.NONE),
        (True, None, 9.0, True, Victim.NONE),
    ],
)
def test_shadow_work_displaces_only_what_has_been_idle_longer_than_the_age(
    uncached: bool,
    shadow_idle_s: float | None,
    normal_idle_s: float | None,
    at_cap: bool,
    victim: Victim,
) -> None:
    assert (
        victim_for_shadow(
            uncached=uncached,
            shadow_idle_s=shadow_idle_s,
            normal_idle_s=normal_idle_s,
            at_cap=at_cap,
            idle_age_s=5.0,
        )
        is victim
    )


@pytest.mark.parametrize(
    ("kv_class", "hit_by", "expected"),
    [
        (KvClass.SHADOW, RequestClass.ROUTED, KvClass.NORMAL),
        (KvClass.SHADOW, RequestClass.NORMAL, KvClass.NORMAL),
        (KvClass.SHADOW, RequestClass.SHADOW, KvClass.SHADOW),
        (KvClass.NORMAL, RequestClass.SHADOW, KvClass.NORMAL),
    ],
)
def test_a_hit_promotes_and_never_demotes(
    kv_class: KvClass, hit_by: RequestClass, expected: KvClass
) -> None:
    assert class_after_hit(kv_class, hit_by) is expected


@pytest.mark.parametrize(
    ("kv_cap_share", "idle_age_s", "message"),
    [
        (0.0, 5.0, r"^shadow\.kv_cap_share must be > 0 and <= 1, got 0\.0$"),
        (1.1, 5.0, r"^shadow\.kv_cap_share must be > 0 and <= 1, got 1\.1$"),
        (0.25, -1.0, r"^shadow\.idle_age_s must be >= 0, got -1\.0$"),
    ],
)
def test_a_parameter_outside_its_limits_is_named(
    kv_cap_share: float, idle_age_s: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        KvClassParams(kv_cap_share=kv_cap_share, idle_age_s=idle_age_s)
