"""Links over the real NIXL, both ends in this process or one in another that dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kv_transport.errors import PeerGone
from kv_transport.link import BlockCopy, EndedTransfer, Link
from kv_transport.nixl_link import Memory, NixlEnd, NixlLink, NixlRoute, Operation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

pytestmark = pytest.mark.nixl

BLOCK_BYTES = 4096
BLOCKS = 8


def memory_of(content: np.ndarray) -> Memory:
    return Memory(kind="DRAM", address=content.ctypes.data, size_bytes=content.nbytes)


def filled(first: int) -> np.ndarray:
    """A number per block."""
    return np.repeat(np.arange(first, first + BLOCKS, dtype=np.uint8), BLOCK_BYTES)


def blocks_of(content: np.ndarray) -> list[int]:
    assert all(len(set(block)) == 1 for block in content.reshape(BLOCKS, -1)), "a torn block"
    return [int(block[0]) for block in content.reshape(BLOCKS, -1)]


@pytest.fixture(scope="module", autouse=True)
def _ucx() -> None:
    os.environ.setdefault("UCX_TLS", "tcp,shm,cma,self")


@pytest.fixture(scope="module")
def ends() -> Iterator[tuple[np.ndarray, np.ndarray, NixlRoute]]:
    here, there = filled(10), filled(20)
    near, far = NixlEnd("near", memory_of(here)), NixlEnd("far", memory_of(there))
    route = near.route_to(far.invitation(), BLOCK_BYTES)
    yield here, there, route
    route.close()
    near.close()
    far.close()


def all_ended(link: Link) -> list[EndedTransfer]:
    found: list[EndedTransfer] = []
    deadline_s = time.monotonic() + 10
    while not found and time.monotonic() < deadline_s:
        found = link.ended()
    return found


def test_a_read_brings_the_named_blocks_and_no_others(
    ends: tuple[np.ndarray, np.ndarray, NixlRoute],
) -> None:
    here, there, route = ends
    here[:], there[:] = filled(10), filled(20)
    link = NixlLink(route, Operation.READ)
    link.post("a", [BlockCopy(source=3, target=0), BlockCopy(source=1, target=7)])
    (ended,) = all_ended(link)
    assert (ended.transfer_id, ended.size_bytes, ended.error) == ("a", 2 * BLOCK_BYTES, None)
    assert ended.duration_s > 0
    assert blocks_of(here) == [23, 11, 12, 13, 14, 15, 16, 21]
    assert blocks_of(there) == list(range(20, 28))
    assert link.ended() == []


def test_a_write_takes_them_the_other_way(
    ends: tuple[np.ndarray, np.ndarray, NixlRoute],
) -> None:
    here, there, route = ends
    here[:], there[:] = filled(10), filled(20)
    link = NixlLink(route, Operation.WRITE)
    link.post("a", [BlockCopy(source=3, target=0)])
    assert [one.error for one in all_ended(link)] == [None]
    assert blocks_of(there) == [13, 21, 22, 23, 24, 25, 26, 27]
    assert blocks_of(here) == list(range(10, 18))


@pytest.mark.parametrize(
    ("local", "remote", "descriptors"),
    [
        ([0, 1, 2, 3], [4, 5, 6, 7], 1),
        ([0, 1, 4, 5], [4, 5, 6, 7], 2),
        ([3, 2, 1, 0], [7, 6, 5, 4], 4),
        ([0, 1, 2, 3], [7, 6, 5, 4], 4),
    ],
    ids=["both_rise", "a_gap", "both_fall", "one_falls"],
)
def test_nixl_merges_neighbours_that_rise_on_both_sides(
    ends: tuple[np.ndarray, np.ndarray, NixlRoute],
    local: list[int],
    remote: list[int],
    descriptors: int,
) -> None:
    """Why engine.kv_blocks hands blocks out in rising order."""
    transfer = ends[2].prepare(Operation.READ, local, remote)
    is_done = transfer.post()
    while not is_done:
        is_done = transfer.is_done()
    told = transfer.telemetry()
    assert (told.descriptors, told.size_bytes) == (descriptors, 4 * BLOCK_BYTES)
    transfer.close()


def test_a_peer_that_died_fails_what_is_posted_to_it() -> None:
    here = filled(10)
    near = NixlEnd("near-of-a-mortal", memory_of(here))
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    other = spawn.Process(target=_mortal, args=(theirs,), daemon=True)
    other.start()
    try:
        link = NixlLink(near.route_to(ours.recv(), BLOCK_BYTES), Operation.READ)
        link.post("a", [BlockCopy(source=0, target=0)])
        assert [one.error for one in all_ended(link)] == [None]
        assert other.pid is not None
        os.kill(other.pid, signal.SIGKILL)
        other.join()
        with pytest.raises(PeerGone, match="place the request again"):
            _post_until_it_fails(link)
    finally:
        other.kill()


def _post_until_it_fails(link: Link) -> None:
    for number in range(200):
        link.post(f"late-{number}", [BlockCopy(source=1, target=1)])
        for one in all_ended(link):
            if one.error is not None:
                raise one.error
        time.sleep(0.02)


def _mortal(connection: Connection) -> None:
    content = filled(20)
    end = NixlEnd("mortal", memory_of(content))
    connection.send(end.invitation())
    connection.recv()
