"""What an instance holds, and what of it the shadow has saved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.warmth import (
    HeldPrefix,
    after_call,
    after_segment,
    cut,
    segment_computed_tokens,
    shadow_tokens_used,
    stopped_segment_tokens,
)


@pytest.mark.parametrize(
    ("prompt_tokens", "output_tokens", "own_tokens"),
    [
        (0, 0, 0),
        (100, 0, 96),
        (96, 1, 96),
        (95, 1, 64),
        # The 33rd output token was sampled, but the KV of only 32 was computed.
        (96, 33, 128),
        (96, 32, 96),
    ],
)
def test_a_call_leaves_its_whole_blocks(
    prompt_tokens: int, output_tokens: int, own_tokens: int
) -> None:
    held = after_call(prompt_tokens, output_tokens, block_size=32)
    assert held == HeldPrefix(own_tokens=own_tokens, shadow_tokens=0)
    assert held.tokens == own_tokens


@pytest.mark.parametrize(
    ("held", "end_tokens", "cached_tokens", "expected"),
    [
        (HeldPrefix(), 4096, 0, HeldPrefix(shadow_tokens=4096)),
        # A system prompt that other sessions left there is not the shadow's merit.
        (HeldPrefix(), 4096, 512, HeldPrefix(own_tokens=512, shadow_tokens=4096)),
        # The second segment finds the first one, which is.
        (
            HeldPrefix(own_tokens=512, shadow_tokens=4096),
            8192,
            4096,
            HeldPrefix(own_tokens=512, shadow_tokens=8192),
        ),
        (HeldPrefix(own_tokens=960), 2048, 960, HeldPrefix(own_tokens=960, shadow_tokens=2048)),
        (HeldPrefix(), 100, 0, HeldPrefix(shadow_tokens=96)),
        (HeldPrefix(shadow_tokens=4096), 1024, 1024, HeldPrefix(shadow_tokens=4096)),
    ],
)
def test_a_segment_extends_the_shadow(
    held: HeldPrefix, end_tokens: int, cached_tokens: int, expected: HeldPrefix
) -> None:
    after = after_segment(held, end_tokens, cached_tokens, block_size=32)
    assert after == expected
    assert after.tokens == max(expected.own_tokens, expected.shadow_tokens)


@pytest.mark.parametrize(
    ("held", "cached_tokens", "used"),
    [
        (HeldPrefix(), 0, 0),
        (HeldPrefix(own_tokens=960), 960, 0),
        (HeldPrefix(own_tokens=960, shadow_tokens=4096), 4096, 3136),
        # Evicted in part: only what was found counts.
        (HeldPrefix(own_tokens=960, shadow_tokens=4096), 2048, 1088),
        (HeldPrefix(own_tokens=960, shadow_tokens=4096), 512, 0),
        # More than we knew of: the rest did not come from the shadow.
        (HeldPrefix(own_tokens=960, shadow_tokens=2048), 4096, 1088),
        (HeldPrefix(own_tokens=4096, shadow_tokens=2048), 4096, 0),
    ],
)
def test_only_what_the_shadow_added_counts_as_used(
    held: HeldPrefix, cached_tokens: int, used: int
) -> None:
    assert shadow_tokens_used(held, cached_tokens) == used


def test_a_shadow_is_used_once() -> None:
    before = HeldPrefix(own_tokens=960, shadow_tokens=4096)
    assert shadow_tokens_used(before, 4096) > 0
    assert shadow_tokens_used(after_call(5000, 10, 32), 4992) == 0


def test_a_rewritten_history_cuts_what_is_held() -> None:
    held = HeldPrefix(own_tokens=960, shadow_tokens=4096)
    assert cut(held, 2000, 32) == HeldPrefix(own_tokens=960, shadow_tokens=1984)
    assert cut(held, 100, 32) == HeldPrefix(own_tokens=96, shadow_tokens=96)


def test_a_segment_costs_what_was_not_cached() -> None:
    assert segment_computed_tokens(4096, 1024) == 3072
    assert segment_computed_tokens(1024, 4096) == 0


@given(
    events=st.lists(
        st.tuples(
            st.sampled_from(["call", "segment", "cut"]),
            st.integers(0, 20_000),
            st.integers(0, 20_000),
        )
    ),
    cached_tokens=st.integers(0, 20_000),
)
def test_no_history_counts_more_than_was_cached_or_computed(
    events: list[tuple[str, int, int]], cached_tokens: int
) -> None:
    held = HeldPrefix()
    for kind, first, second in events:
        if kind == "call":
            held = after_call(first, second, 32)
        elif kind == "segment":
            held = after_segment(held, first, min(first, second), 32)
        else:
            held = cut(held, first, 32)
        assert held.shadow_tokens % 32 == 0
        assert 0 <= shadow_tokens_used(held, cached_tokens) <= cached_tokens
        assert shadow_tokens_used(held, cached_tokens) <= held.shadow_tokens


@pytest.mark.parametrize(
    ("held", "stopped_tokens", "cached_tokens", "expected"),
    [
        (HeldPrefix(own_tokens=100, shadow_tokens=200), 600, 450, 250),
        (HeldPrefix(own_tokens=100, shadow_tokens=200), 600, 900, 400),  # the rest is not its work
        (HeldPrefix(own_tokens=300, shadow_tokens=200), 600, 450, 150),
        (HeldPrefix(own_tokens=100, shadow_tokens=200), 600, 150, 0),  # evicted meanwhile
        (HeldPrefix(own_tokens=100, shadow_tokens=200), 0, 900, 0),  # none was stopped
    ],
)
def test_what_a_stopped_segment_computed_shows_in_what_is_cached(
    held: HeldPrefix, stopped_tokens: int, cached_tokens: int, expected: int
) -> None:
    assert stopped_segment_tokens(held, stopped_tokens, cached_tokens) == expected
