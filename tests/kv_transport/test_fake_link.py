"""The link that tests and simulations use in the place of NIXL."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from kv_transport.errors import PeerGone
from kv_transport.fake_link import FakeLink
from kv_transport.link import BlockCopy, EndedTransfer


@dataclass
class Ends:
    """Two memories of ten blocks; a block takes a second."""

    now_s: float = 0.0
    source: list[str] = field(default_factory=lambda: [f"old{block}" for block in range(10)])
    target: list[str] = field(default_factory=lambda: [""] * 10)

    def link(self) -> FakeLink:
        return FakeLink(self.copy, block_bytes=1000, bytes_per_s=1000.0, clock=lambda: self.now_s)

    def copy(self, one: BlockCopy) -> None:
        self.target[one.target] = self.source[one.source]


COPIES = [BlockCopy(0, 5), BlockCopy(1, 6)]


def test_bytes_take_their_time() -> None:
    ends = Ends()
    link = ends.link()
    link.post("a", COPIES)
    ends.now_s = 1.9
    assert link.ended() == []
    assert ends.target[5:7] == ["old0", ""]
    ends.now_s = 2.0
    ended = EndedTransfer(transfer_id="a", size_bytes=2000, duration_s=2.0)
    assert link.ended() == [ended]
    assert ends.target[5:7] == ["old0", "old1"]
    assert link.ended() == []


def test_one_transfer_follows_the_other() -> None:
    ends = Ends()
    link = ends.link()
    link.post("a", COPIES)
    ends.now_s = 1.0
    link.post("b", COPIES[:1])
    ends.now_s = 10.0
    assert [(one.transfer_id, one.duration_s) for one in link.ended()] == [("a", 2.0), ("b", 2.0)]
    link.post("c", COPIES[:1])
    ends.now_s = 11.0
    assert [one.duration_s for one in link.ended()] == [1.0]


def test_a_source_that_changes_before_it_was_read_gives_what_it_holds_then() -> None:
    ends = Ends()
    link = ends.link()
    link.post("a", COPIES)
    ends.now_s = 1.0
    link.advance()
    ends.source[0] = ends.source[1] = "new"
    ends.now_s = 2.0
    link.ended()
    assert ends.target[5:7] == ["old0", "new"]


def test_a_frozen_peer_sends_nothing_and_goes_on_later() -> None:
    ends = Ends()
    link = ends.link()
    link.post("a", COPIES)
    ends.now_s = 1.0
    link.freeze()
    ends.now_s = 100.0
    assert link.ended() == []
    link.thaw()
    ends.now_s = 101.0
    assert [one.error for one in link.ended()] == [None]
    assert ends.target[5:7] == ["old0", "old1"]


def test_a_peer_that_is_lost_fails_what_is_in_flight_and_takes_nothing_until_it_is_back() -> None:
    ends = Ends()
    link = ends.link()
    link.post("a", COPIES)
    link.lose_peer()
    (ended,) = link.ended()
    assert isinstance(ended.error, PeerGone)
    with pytest.raises(PeerGone, match="transfer b"):
        link.post("b", COPIES)
    link.find_peer()
    link.post("c", COPIES[:1])
    ends.now_s = 1.0
    assert [one.error for one in link.ended()] == [None]


def test_a_closed_link_forgets_what_was_in_flight() -> None:
    ends = Ends()
    link = ends.link()
    link.post("a", COPIES)
    link.close()
    ends.now_s = 9.0
    assert link.ended() == []
