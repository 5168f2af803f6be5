from __future__ import annotations

import pytest

from engine.kv_room import Claim, KvRoom, blocks_of

STARTED = Claim(started=True, tail_tokens=5)
NEW = Claim(started=False, idle_hit_blocks=2)
RESUMED = Claim(started=False, idle_hit_blocks=2, own_hit_blocks=2)


def a_room(free: int = 10, cap: int = 10, start: int = 0) -> KvRoom:
    return KvRoom(free_blocks=free, cap_blocks=cap, block_size=16, start_free_blocks=start)


@pytest.mark.parametrize(
    ("room", "claim", "expected"),
    [
        (a_room(), STARTED, 165),
        (a_room(free=3), STARTED, 53),
        (a_room(cap=0), STARTED, 5),  # what it holds already is its own
        (a_room(cap=-4), STARTED, 5),
        (a_room(), NEW, 128),  # its prefix takes two blocks out of the free ones
        (a_room(cap=3), NEW, 48),  # which others computed: they do not count for the cap
        (a_room(cap=3), RESUMED, 16),
        (a_room(start=9), NEW, 0),
        (a_room(start=9, free=1), STARTED, 21),
    ],
)
def test_room(room: KvRoom, claim: Claim, expected: int) -> None:
    assert room.fits(1000, claim) == expected


def test_what_one_takes_the_next_does_not_find() -> None:
    room = a_room(free=10, cap=6)
    assert room.take(40, NEW) == 40  # 3 blocks and 2 of its prefix
    assert (room.free_blocks, room.cap_blocks) == (5, 3)
    assert room.take(1000, STARTED) == 53
    assert (room.free_blocks, room.cap_blocks) == (2, 0)
    assert room.take(1000, NEW) == 0
    assert (room.free_blocks, room.cap_blocks) == (2, 0)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_blocks(tokens: int, blocks: int) -> None:
    assert blocks_of(tokens, 16) == blocks
