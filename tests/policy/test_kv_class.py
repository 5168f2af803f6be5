"""The cap, the idle age and the eviction order, as tables."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.kv_class import (
    NO_HIT,
    KvClassParams,
    KvPool,
    PrefixHit,
    RoomReason,
    ShadowRoom,
    Shortage,
    Start,
    Victims,
    cap_blocks,
    class_after_hit,
    is_idle,
    shadow_room,
    shortage,
    start_room,
    victims_cold_first,
    victims_for_foreground,
    victims_for_shadow,
)
from policy.vocabulary import KvClass, RequestClass

PARAMS = KvClassParams(kv_cap_share=0.25, idle_age_s=5.0)


def a_pool(
    uncached: int = 0,
    shadow: tuple[int, int] = (0, 0),
    normal: tuple[int, int] = (0, 0),
    used_shadow: int = 0,
) -> KvPool:
    """Of a hundred blocks; `shadow` and `normal` are cached: the idle ones, and the others."""
    return KvPool(
        total_blocks=100,
        shadow_blocks=sum(shadow) + used_shadow,
        uncached_blocks=uncached,
        cached_shadow_blocks=sum(shadow),
        idle_shadow_blocks=shadow[0],
        cached_normal_blocks=sum(normal),
        idle_normal_blocks=normal[0],
    )


def test_every_block_is_used_or_cached_or_empty() -> None:
    pool = a_pool(uncached=40, shadow=(3, 2), normal=(10, 5), used_shadow=7)
    assert (pool.used_shadow_blocks, pool.used_normal_blocks) == (7, 33)


@pytest.mark.parametrize(
    ("pool", "blocks", "limited_by"),
    [
        (a_pool(uncached=100), 25, RoomReason.CAP),
        (a_pool(uncached=50, used_shadow=20), 5, RoomReason.CAP),
        (a_pool(uncached=50, used_shadow=25), 0, RoomReason.CAP),
        (a_pool(uncached=50, shadow=(0, 25)), 0, RoomReason.CAP),
        (a_pool(uncached=50, used_shadow=40), 0, RoomReason.CAP),
        (a_pool(uncached=3, normal=(4, 9)), 7, RoomReason.NOTHING_IDLE),
        (a_pool(normal=(0, 50)), 0, RoomReason.NOTHING_IDLE),
        (a_pool(uncached=5, normal=(20, 0)), 25, RoomReason.CAP),
        # At the cap, but some of it is old enough to make way for newer shadow work.
        (a_pool(uncached=50, shadow=(10, 5), used_shadow=10), 10, RoomReason.CAP),
        (a_pool(uncached=1, shadow=(10, 0), used_shadow=10), 11, RoomReason.NOTHING_IDLE),
        # A running request has taken blocks of a hit that was looked up a moment ago.
        (a_pool(shadow=(-3, 0), used_shadow=25), 0, RoomReason.NOTHING_IDLE),
    ],
)
def test_room(pool: KvPool, blocks: int, limited_by: RoomReason) -> None:
    assert shadow_room(pool, PARAMS) == ShadowRoom(blocks, limited_by)


def a_start(missing: int = 10, promised: int = 0, spare: int = 0) -> Start:
    return Start(missing_blocks=missing, promised_blocks=promised, spare_blocks=spare)


@pytest.mark.parametrize(
    ("pool", "start", "expected"),
    [
        (a_pool(uncached=50), a_start(missing=90), ShadowRoom(25, RoomReason.CAP)),
        (a_pool(uncached=50, used_shadow=8), a_start(promised=7), ShadowRoom(17, RoomReason.CAP)),
        (
            a_pool(uncached=50, used_shadow=8),
            a_start(promised=8),
            ShadowRoom(0, RoomReason.PROMISED),
        ),
        (a_pool(uncached=50, shadow=(0, 9)), a_start(promised=15), ShadowRoom(16, RoomReason.CAP)),
        (
            a_pool(uncached=50, shadow=(0, 9)),
            a_start(promised=16),
            ShadowRoom(0, RoomReason.PROMISED),
        ),
        (a_pool(uncached=5), a_start(spare=5), ShadowRoom(5, RoomReason.NOTHING_IDLE)),
        (a_pool(uncached=5), a_start(spare=6), ShadowRoom(0, RoomReason.POOL_FULL)),
    ],
    ids=[
        "alone",
        "both_end_under_the_cap",
        "they_do_not",
        "cached_ones_can_go",
        "up_to_the_cap",
        "enough_are_spare",
        "too_few_are_spare",
    ],
)
def test_room_of_a_job_that_starts(pool: KvPool, start: Start, expected: ShadowRoom) -> None:
    assert start_room(pool, start, PARAMS) == expected


@pytest.mark.parametrize(
    ("blocks", "pool", "expected"),
    [
        (5, a_pool(uncached=9, shadow=(9, 9), normal=(9, 9)), Victims(uncached=5)),
        (12, a_pool(uncached=9, shadow=(9, 9), normal=(9, 9)), Victims(9, 3)),
        (30, a_pool(uncached=9, shadow=(9, 9), normal=(9, 9)), Victims(9, 18, 3)),
        (3, a_pool(shadow=(0, 9), normal=(9, 0)), Victims(shadow=3)),
        (9, a_pool(uncached=1, shadow=(1, 0), normal=(1, 0)), Victims(1, 1, 1)),
    ],
)
def test_foreground_evicts_shadow_entries_before_normal_ones(
    blocks: int, pool: KvPool, expected: Victims
) -> None:
    assert victims_for_foreground(blocks, pool) == expected


@pytest.mark.parametrize(
    ("blocks", "pool", "expected"),
    [
        (12, a_pool(uncached=9, shadow=(9, 9), normal=(9, 9)), Victims(9, 0, 3)),
        (30, a_pool(uncached=9, shadow=(9, 9), normal=(9, 9)), Victims(9, 12, 9)),
        (40, a_pool(uncached=9, shadow=(9, 9), normal=(9, 9)), Victims(9, 18, 13)),
        (3, a_pool(shadow=(0, 9), normal=(0, 9)), Victims(shadow=3)),
        (99, a_pool(uncached=1, shadow=(1, 0), normal=(1, 1)), Victims(1, 1, 2)),
    ],
)
def test_cold_first_a_shadow_goes_after_what_it_might_displace_itself(
    blocks: int, pool: KvPool, expected: Victims
) -> None:
    assert victims_cold_first(blocks, pool) == expected


@pytest.mark.parametrize(
    ("blocks", "pool", "expected"),
    [
        (5, a_pool(uncached=9, shadow=(9, 0), normal=(9, 0)), Victims(uncached=5)),
        (12, a_pool(uncached=9, shadow=(9, 0), normal=(9, 0)), Victims(9, 3)),
        (20, a_pool(uncached=9, shadow=(9, 0), normal=(9, 0)), Victims(9, 9, 2)),
        (20, a_pool(uncached=3, shadow=(4, 9), normal=(5, 9)), Victims(3, 4, 5)),
        # At the cap it recycles its own class, though others are free.
        (5, a_pool(uncached=9, shadow=(9, 0), normal=(9, 0), used_shadow=16), Victims(shadow=5)),
        (5, a_pool(uncached=9, shadow=(2, 7), normal=(9, 0), used_shadow=14), Victims(2, 2)),
        (5, a_pool(uncached=1, normal=(9, 0), used_shadow=22), Victims(1, 0, 2)),
    ],
)
def test_shadow_work_displaces_only_what_is_idle_and_stays_under_its_cap(
    blocks: int, pool: KvPool, expected: Victims
) -> None:
    assert victims_for_shadow(blocks, pool, PARAMS) == expected


counts = st.integers(0, 40)


@st.composite
def pools(draw: Any) -> KvPool:
    return a_pool(
        draw(counts), (draw(counts), draw(counts)), (draw(counts), draw(counts)), draw(counts)
    )


@given(pools(), st.integers(0, 120))
def test_what_has_room_finds_its_blocks_and_nothing_else_does(pool: KvPool, blocks: int) -> None:
    room = shadow_room(pool, PARAMS).blocks
    victims = victims_for_shadow(blocks, pool, PARAMS)
    assert victims.blocks == min(blocks, room)
    assert victims.uncached <= pool.uncached_blocks
    assert victims.shadow <= pool.idle_shadow_blocks
    assert victims.normal <= pool.idle_normal_blocks


@given(pools(), st.integers(0, 120))
def test_shadow_work_never_exceeds_its_cap(pool: KvPool, blocks: int) -> None:
    after = pool.after_taking(victims_for_shadow(blocks, pool, PARAMS), KvClass.SHADOW)
    assert after.shadow_blocks <= max(pool.shadow_blocks, cap_blocks(100, 0.25))


@given(pools(), st.integers(0, 120), st.sampled_from(KvClass))
def test_what_is_taken_is_gone_from_the_counts(pool: KvPool, blocks: int, by: KvClass) -> None:
    victims = victims_for_foreground(blocks, pool)
    after = pool.after_taking(victims, by)
    assert after.free_blocks == pool.free_blocks - victims.blocks
    assert 0 <= after.idle_shadow_blocks <= after.cached_shadow_blocks
    assert 0 <= after.idle_normal_blocks <= after.cached_normal_blocks
    taken = victims.blocks if by is KvClass.SHADOW else 0
    assert after.used_shadow_blocks == pool.used_shadow_blocks + taken


def test_a_prefix_that_is_taken_into_use_leaves_the_free_blocks_and_keeps_its_class() -> None:
    pool = a_pool(uncached=1, shadow=(5, 5), normal=(5, 5), used_shadow=3)
    hit = PrefixHit(
        shadow_blocks=8,
        cached_shadow_blocks=6,
        idle_shadow_blocks=4,
        cached_normal_blocks=3,
        idle_normal_blocks=1,
    )
    expected = KvPool(
        total_blocks=100,
        shadow_blocks=13,
        uncached_blocks=1,
        cached_shadow_blocks=4,
        idle_shadow_blocks=1,
        cached_normal_blocks=7,
        idle_normal_blocks=4,
    )
    assert pool.after_hit(hit) == expected
    assert pool.after_hit(NO_HIT) is pool


def test_time_makes_every_cached_entry_idle() -> None:
    assert a_pool(3, (1, 2), (3, 4), 5).aged() == a_pool(3, (3, 0), (7, 0), 5)


@pytest.mark.parametrize(("idle_s", "idle"), [(0.0, False), (5.0, False), (5.001, True)])
def test_idle_is_longer_than_the_age(idle_s: float, idle: bool) -> None:
    assert is_idle(idle_s, PARAMS) is idle


@pytest.mark.parametrize(
    ("blocks", "own", "later", "expected"),
    [
        (4, 22, 9, Shortage.TRUNCATED_BY_CAP),
        (4, 21, 4, Shortage.NOT_IDLE_YET),
        (4, 21, 3, Shortage.HELD),
    ],
)
def test_a_job_without_room_ends_waits_or_needs_others_to_give_way(
    blocks: int, own: int, later: int, expected: Shortage
) -> None:
    assert shortage(blocks, own, ShadowRoom(later, RoomReason.CAP), cap=25) is expected


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
