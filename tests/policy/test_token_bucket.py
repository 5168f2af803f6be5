"""A bucket gives its rate over time, its capacity at once, and says when to come again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.token_bucket import TokenBucket


def a_bucket(rate_per_s: float = 2.0, capacity: float = 3.0) -> TokenBucket:
    return TokenBucket(rate_per_s=rate_per_s, capacity=capacity, now_s=10.0)


def test_a_full_bucket_gives_its_capacity_at_once_and_then_a_time() -> None:
    bucket = a_bucket()
    assert [bucket.take(10.0) for _ in range(3)] == [0.0] * 3
    assert bucket.take(10.0) == pytest.approx(0.5)
    assert bucket.take(10.5) == 0.0


def test_an_idle_bucket_holds_no_more_than_its_capacity() -> None:
    assert a_bucket().level(1e6) == 3.0


def test_a_clock_that_goes_back_takes_nothing_away() -> None:
    bucket = a_bucket()
    bucket.spend(20.0, 3.0)
    assert bucket.level(15.0) == 0.0
    assert bucket.level(20.0) == 0.0
    assert bucket.level(21.0) == 2.0


def test_what_was_overspent_is_paid_back_first() -> None:
    bucket = a_bucket()
    bucket.spend(10.0, 7.0)
    assert bucket.level(10.0) == -4.0
    assert bucket.take(12.0) == pytest.approx(0.5)


@pytest.mark.parametrize(("rate_per_s", "capacity"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0)])
def test_rate_and_capacity_must_be_positive(rate_per_s: float, capacity: float) -> None:
    with pytest.raises(ValueError, match="must be > 0"):
        a_bucket(rate_per_s, capacity)


@given(
    rate_per_s=st.floats(0.1, 100),
    capacity=st.integers(1, 50),
    steps_s=st.lists(st.floats(0, 2), max_size=60),
)
def test_never_more_than_the_capacity_and_the_rate(
    rate_per_s: float, capacity: int, steps_s: list[float]
) -> None:
    bucket = TokenBucket(rate_per_s=rate_per_s, capacity=capacity, now_s=0.0)
    now_s, taken = 0.0, 0
    for step_s in steps_s:
        now_s += step_s
        taken += bucket.take(now_s) == 0.0
    assert taken <= capacity + rate_per_s * now_s + 1e-6


@given(st.floats(0.01, 100), st.floats(0, 0.999))
def test_whoever_comes_when_told_gets_one(rate_per_s: float, left: float) -> None:
    bucket = TokenBucket(rate_per_s=rate_per_s, capacity=1.0, now_s=0.0)
    bucket.spend(0.0, 1.0 - left)
    wait_s = bucket.take(0.0)
    assert wait_s > 0
    assert bucket.take(wait_s + 1e-9) == 0.0
