"""Which instance a call goes to, as tables."""

from __future__ import annotations

import pytest

from policy.placement import (
    DecodeCandidate,
    Placed,
    PlacementReason,
    PrefillCandidate,
    place_decode,
    place_prefill,
    skip_prefill,
)


def a_prefill(
    name: str, queue_s: float = 0.0, uncached_tokens: int = 1000, healthy: bool = True
) -> PrefillCandidate:
    return PrefillCandidate(
        name=name,
        healthy=healthy,
        queue_s=queue_s,
        uncached_tokens=uncached_tokens,
        s_per_token=0.001,
    )


def a_decode(
    name: str, in_flight: int = 0, free_tokens: int = 1000, healthy: bool = True
) -> DecodeCandidate:
    return DecodeCandidate(
        name=name, healthy=healthy, in_flight_requests=in_flight, free_tokens=free_tokens
    )


@pytest.mark.parametrize(
    ("candidates", "sticky", "instance", "reason"),
    [
        ([], "p0", "", PlacementReason.NONE_HEALTHY),
        ([a_prefill("p0", healthy=False)], "p0", "", PlacementReason.NONE_HEALTHY),
        ([a_prefill("p1"), a_prefill("p0")], None, "p0", PlacementReason.FIRST),
        ([a_prefill("p0", 0.5), a_prefill("p1")], None, "p1", PlacementReason.FIRST),
        # Only tokens that are not cached count.
        ([a_prefill("p0", 0.5, 100), a_prefill("p1")], None, "p0", PlacementReason.FIRST),
        ([a_prefill("p0"), a_prefill("p1")], "p1", "p1", PlacementReason.STICKY),
        # 1.0 s against 0.85 s: faster, but by less than the margin of 20%.
        ([a_prefill("p0"), a_prefill("p1", 0, 850)], "p0", "p0", PlacementReason.STICKY),
        ([a_prefill("p0"), a_prefill("p1", 0, 790)], "p0", "p1", PlacementReason.MOVED_FASTER),
        # The warm instance is so busy that a cold prefill elsewhere finishes first.
        ([a_prefill("p0", 3.0, 10), a_prefill("p1")], "p0", "p1", PlacementReason.MOVED_FASTER),
        ([a_prefill("p0", 0.5, 10), a_prefill("p1")], "p0", "p0", PlacementReason.STICKY),
        (
            [a_prefill("p0", healthy=False), a_prefill("p1")],
            "p0",
            "p1",
            PlacementReason.STICKY_UNHEALTHY,
        ),
        ([a_prefill("p1")], "gone", "p1", PlacementReason.STICKY_UNHEALTHY),
    ],
)
def test_prefill(
    candidates: list[PrefillCandidate], sticky: str | None, instance: str, reason: PlacementReason
) -> None:
    assert place_prefill(candidates, sticky) == Placed(instance, reason)


def test_the_margin_is_the_operators_choice() -> None:
    candidates = [a_prefill("p0"), a_prefill("p1", 0, 850)]
    assert place_prefill(candidates, "p0", move_margin_share=0.1).instance == "p1"


def test_an_instant_sticky_instance_is_never_left() -> None:
    candidates = [a_prefill("p0", 0, 0), a_prefill("p1", 0, 0)]
    assert place_prefill(candidates, "p1", move_margin_share=0.0).instance == "p1"


@pytest.mark.parametrize(
    ("candidates", "sticky", "instance", "reason"),
    [
        ([], None, "", PlacementReason.NONE_HEALTHY),
        ([a_decode("d0", healthy=False)], "d0", "", PlacementReason.NONE_HEALTHY),
        ([a_decode("d1"), a_decode("d0")], None, "d0", PlacementReason.FIRST),
        ([a_decode("d0", 2), a_decode("d1", 1)], None, "d1", PlacementReason.FIRST),
        ([a_decode("d0", 9), a_decode("d1", 0)], "d0", "d0", PlacementReason.STICKY),
        (
            [a_decode("d0", free_tokens=499), a_decode("d1", 5)],
            "d0",
            "d1",
            PlacementReason.STICKY_FULL,
        ),
        ([a_decode("d0", free_tokens=500), a_decode("d1")], "d0", "d0", PlacementReason.STICKY),
        (
            [a_decode("d0", healthy=False), a_decode("d1")],
            "d0",
            "d1",
            PlacementReason.STICKY_UNHEALTHY,
        ),
        # Full ones are passed over even when they are less busy ...
        (
            [a_decode("d0", 0, free_tokens=1), a_decode("d1", 7)],
            None,
            "d1",
            PlacementReason.FIRST,
        ),
        # ... unless all are full.
        (
            [a_decode("d0", 2, free_tokens=1), a_decode("d1", 1, free_tokens=1)],
            "d0",
            "d1",
            PlacementReason.NO_ROOM,
        ),
    ],
)
def test_decode(
    candidates: list[DecodeCandidate], sticky: str | None, instance: str, reason: PlacementReason
) -> None:
    assert place_decode(candidates, sticky, needed_tokens=500) == Placed(instance, reason)


@pytest.mark.parametrize(
    ("prompt_tokens", "held_tokens", "limit_tokens", "reason"),
    [
        (100, 0, 100, PlacementReason.SKIPPED_SHORT),
        (101, 0, 100, PlacementReason.STICKY),
        (5000, 4900, 100, PlacementReason.SKIPPED_HELD),
        (5000, 4899, 100, PlacementReason.STICKY),
        (5000, 5000, 100, PlacementReason.SKIPPED_HELD),
        (5000, 5001, 100, PlacementReason.STICKY),
        (5000, 5000, 0, PlacementReason.STICKY),
        (1, 0, 0, PlacementReason.STICKY),
    ],
)
def test_a_decode_instance_computes_what_it_lacks_if_that_is_little(
    prompt_tokens: int, held_tokens: int, limit_tokens: int, reason: PlacementReason
) -> None:
    placed = skip_prefill(
        Placed("p", PlacementReason.STICKY), "d", prompt_tokens, held_tokens, limit_tokens
    )
    assert placed == Placed("p" if reason is PlacementReason.STICKY else "d", reason)


def test_without_a_prefill_instance_nothing_was_skipped() -> None:
    nobody = Placed("", PlacementReason.NONE_HEALTHY)
    assert skip_prefill(nobody, "d", 10, 0, 100) is nobody
