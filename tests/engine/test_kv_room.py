"""The room of one step: how tokens, slots and prefixes become blocks of policy.kv_class."""

from __future__ import annotations

import pytest

from engine.kv_room import Claim, KvRoom, blocks_of
from policy.kv_class import KvClassParams, KvPool, PrefixHit, Shortage

STARTED = Claim(started=True, missing_blocks=40, tail_tokens=5)
HIT = PrefixHit(
    shadow_blocks=2, cached_shadow_blocks=2, idle_shadow_blocks=1, cached_normal_blocks=1
)
NEW = Claim(started=False, missing_blocks=40, hit=HIT)


def a_room(
    uncached: int = 10, used_shadow: int = 10, start: int = 0, promised: int = 0, groups: int = 1
) -> KvRoom:
    """The cap is 20 blocks; three shadow and three normal entries are cached, two of each idle."""
    return KvRoom(
        pool=KvPool(
            total_blocks=40,
            shadow_blocks=used_shadow + 3,
            uncached_blocks=uncached,
            cached_shadow_blocks=3,
            idle_shadow_blocks=2,
            cached_normal_blocks=3,
            idle_normal_blocks=2,
        ),
        params=KvClassParams(kv_cap_share=0.5, idle_age_s=5.0),
        block_size=16,
        groups=groups,
        start_free_blocks=start,
        promised_blocks=promised,
    )


@pytest.mark.parametrize(
    ("room", "claim", "tokens"),
    [
        (a_room(), STARTED, 9 * 16 + 5),  # 7 under the cap, and 2 to recycle
        (a_room(uncached=1), STARTED, 5 * 16 + 5),
        (a_room(used_shadow=17), STARTED, 2 * 16 + 5),  # what it holds already is its own
        (a_room(), NEW, 8 * 16),  # its prefix cannot be recycled
        (a_room(start=13), NEW, 8 * 16),
        (a_room(start=14), NEW, 0),
        (a_room(start=14), STARTED, 9 * 16 + 5),
        (a_room(promised=1), NEW, 0),
        (a_room(groups=2), STARTED, 4 * 16 + 5),
    ],
)
def test_room(room: KvRoom, claim: Claim, tokens: int) -> None:
    assert room.fits(1000, claim) == tokens


def test_what_one_takes_the_next_does_not_find() -> None:
    room = a_room()
    assert room.take(40, NEW) == 40  # 3 blocks without an entry, and its prefix
    assert (room.pool.uncached_blocks, room.pool.free_blocks) == (7, 10)
    assert (room.pool.shadow_blocks, room.pool.used_shadow_blocks) == (16, 15)
    assert room.promised_blocks == 37
    assert room.take(1000, STARTED) == 5 * 16 + 5
    assert (room.pool.shadow_blocks, room.pool.idle_shadow_blocks) == (20, 0)
    assert room.promised_blocks == 32
    assert room.take(1000, STARTED) == 5
    assert room.take(1000, NEW) == 0
    assert room.promised_blocks == 32


@pytest.mark.parametrize(
    ("room", "claim", "own_shadow_blocks", "expected"),
    [
        (a_room(), STARTED, 11, Shortage.TRUNCATED_BY_CAP),
        (a_room(), STARTED, 10, Shortage.NOT_IDLE_YET),
        (a_room(uncached=0), STARTED, 10, Shortage.HELD),
        (a_room(), NEW, 2, Shortage.HELD),
        (a_room(promised=40), NEW, 2, Shortage.HELD),
    ],
)
def test_a_job_that_needs_ten_blocks_and_finds_fewer(
    room: KvRoom, claim: Claim, own_shadow_blocks: int, expected: Shortage
) -> None:
    tokens = 10 * 16 + claim.tail_tokens
    assert room.fits(tokens, claim) < tokens
    assert room.shortage(tokens, claim, own_shadow_blocks) is expected


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_blocks(tokens: int, blocks: int) -> None:
    assert blocks_of(tokens, 16) == blocks
