"""Where a shadow job's segments end, and how much of two renders is the same.

A submitted request cannot be extended, so a job runs as prompts that grow: each ends on a block
boundary (a part of a block is never found again in a prefix cache) and is at most one segment
longer than what the target holds.

Pure. Hosts: coordinator.shadow_flow, bench.sim."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

COMPARE_TOKENS = 4096
"""Slices of this length are compared at once, so that the walk is not one of Python steps."""


def aligned(tokens: int, block_size: int) -> int:
    """The whole blocks in this many tokens, in tokens."""
    return tokens - tokens % block_size


def segment_ends(
    *,
    stable_tokens: int,
    covered_tokens: int,
    block_size: int,
    segment_tokens: int,
    resubmit_tokens: int,
    final: bool,
) -> list[int]:
    """Prompt lengths to submit, one after the other. While the other model still streams (`final`
    is False) nothing is due until `resubmit_tokens` are new."""
    step = aligned(segment_tokens, block_size)
    if step == 0:
        raise ValueError(
            f"shadow.segment_tokens must be >= block_size ({block_size}), got {segment_tokens}"
        )
    start = aligned(covered_tokens, block_size)
    end = aligned(stable_tokens, block_size)
    if end <= start or (not final and end - start < resubmit_tokens):
        return []
    return [*range(start + step, end, step), end]


def common_prefix_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many leading tokens are equal."""
    shorter = min(len(first), len(second))
    for start in range(0, shorter, COMPARE_TOKENS):
        ours = first[start : start + COMPARE_TOKENS]
        theirs = second[start : start + COMPARE_TOKENS]
        if ours == theirs:
            continue
        # Also reached by equal slices of different types, such as a list and a tuple, and at the
        # end of the shorter one: then no token differs and the walk goes on.
        for offset, (token, other) in enumerate(zip(ours, theirs, strict=False)):
            if token != other:
                return start + offset
    return shorter
