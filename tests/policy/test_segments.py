"""Segment ends, and common prefixes."""

from __future__ import annotations

from array import array
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.segments import COMPARE_TOKENS, aligned, common_prefix_length, segment_ends

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@pytest.mark.parametrize(
    ("stable_tokens", "covered_tokens", "final", "ends"),
    [
        (0, 0, True, []),
        (31, 0, True, []),
        (32, 0, True, [32]),
        (100, 0, True, [96]),
        (4096, 0, True, [4096]),
        (10_000, 0, True, [4096, 8192, 9984]),
        (10_000, 4096, True, [8192, 9984]),
        (10_000, 5000, True, [9088, 9984]),
        (10_000, 9984, True, []),
        (10_000, 20_000, True, []),
        # While the other model streams, only every 1,024 new tokens.
        (1000, 0, False, []),
        (1024, 0, False, [1024]),
        (1055, 32, False, []),
        (1056, 32, False, [1056]),
    ],
)
def test_segments(stable_tokens: int, covered_tokens: int, final: bool, ends: list[int]) -> None:
    assert (
        segment_ends(
            stable_tokens=stable_tokens,
            covered_tokens=covered_tokens,
            block_size=32,
            segment_tokens=4096,
            resubmit_tokens=1024,
            final=final,
        )
        == ends
    )


def test_a_segment_shorter_than_a_block_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^shadow\.segment_tokens must be >= block_size \(32\), got 31$"
    ):
        segment_ends(
            stable_tokens=100,
            covered_tokens=0,
            block_size=32,
            segment_tokens=31,
            resubmit_tokens=1,
            final=True,
        )


@given(
    stable_tokens=st.integers(0, 100_000),
    covered_tokens=st.integers(0, 100_000),
    block_size=st.sampled_from([1, 16, 32, 128]),
    segment_tokens=st.integers(128, 5000),
    resubmit_tokens=st.integers(1, 5000),
    final=st.booleans(),
)
def test_segments_are_aligned_bounded_and_reach_the_stable_end(
    stable_tokens: int,
    covered_tokens: int,
    block_size: int,
    segment_tokens: int,
    resubmit_tokens: int,
    final: bool,
) -> None:
    ends = segment_ends(
        stable_tokens=stable_tokens,
        covered_tokens=covered_tokens,
        block_size=block_size,
        segment_tokens=segment_tokens,
        resubmit_tokens=resubmit_tokens,
        final=final,
    )
    for before, after in pairwise([aligned(covered_tokens, block_size), *ends]):
        assert 0 < after - before <= segment_tokens
        assert after % block_size == 0
    if ends:
        assert ends[-1] == aligned(stable_tokens, block_size)
        assert final or ends[-1] - aligned(covered_tokens, block_size) >= resubmit_tokens
    elif final:
        assert stable_tokens - aligned(covered_tokens, block_size) < block_size


@pytest.mark.parametrize(
    ("first", "second", "length"),
    [
        ([], [], 0),
        ([1, 2, 3], [], 0),
        ([1, 2, 3], [1, 2, 3], 3),
        ([1, 2, 3], [1, 2], 2),
        ([9, 2, 3], [1, 2, 3], 0),
        ([1, 2, 3, 4], [1, 2, 9, 4], 2),
    ],
)
@pytest.mark.parametrize("convert", [list, tuple, lambda tokens: array("q", tokens)])
def test_common_prefix(
    first: list[int],
    second: list[int],
    length: int,
    convert: Callable[[list[int]], Sequence[int]],
) -> None:
    assert common_prefix_length(first, convert(second)) == length
    assert common_prefix_length(convert(second), first) == length


@pytest.mark.parametrize("differs_at", [0, 1, COMPARE_TOKENS - 1, COMPARE_TOKENS, 99_999])
def test_a_difference_is_found_wherever_the_slices_fall(differs_at: int) -> None:
    first = list(range(100_000))
    second = [*first[:differs_at], -1, *first[differs_at + 1 :]]
    assert common_prefix_length(first, second) == differs_at
    assert common_prefix_length(first, first[:differs_at]) == differs_at


@given(
    shared=st.integers(0, 3 * COMPARE_TOKENS),
    first=st.lists(st.integers(0, 3), max_size=20),
    second=st.lists(st.integers(0, 3), max_size=20),
)
def test_common_prefix_agrees_with_the_plain_walk(
    shared: int, first: list[int], second: list[int]
) -> None:
    ours, theirs = [7] * shared + first, [7] * shared + second
    pairs = zip(ours, theirs, strict=False)
    plain = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    assert common_prefix_length(ours, theirs) == plain
