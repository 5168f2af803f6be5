"""A breaker opens after failures, tries again once, and waits longer each time that fails."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.breaker import Breaker, BreakerParams

PARAMS = BreakerParams(failures=3, open_s=10.0, most_open_s=40.0)


def an_open_breaker() -> Breaker:
    breaker = Breaker(PARAMS)
    for _ in range(3):
        breaker.failed(100.0)
    return breaker


def test_failures_in_a_row_open_it_and_a_success_starts_the_count_again() -> None:
    breaker = Breaker(PARAMS)
    for _ in range(2):
        breaker.failed(100.0)
    breaker.succeeded()
    for _ in range(2):
        breaker.failed(100.0)
    assert breaker.lets_through(100.0)
    breaker.failed(100.0)
    assert not breaker.lets_through(100.0)
    assert not breaker.is_closed


def test_after_its_time_one_call_may_try() -> None:
    breaker = an_open_breaker()
    assert not breaker.lets_through(109.9)
    assert breaker.lets_through(110.0)
    breaker.tries(110.0)
    assert not breaker.lets_through(110.0)
    breaker.succeeded()
    assert breaker.lets_through(110.0)
    assert breaker.is_closed


def test_a_trial_that_fails_opens_it_for_twice_as_long_up_to_a_limit() -> None:
    breaker, now_s = an_open_breaker(), 110.0
    for open_s in (20.0, 40.0, 40.0):
        assert breaker.lets_through(now_s)
        breaker.tries(now_s)
        breaker.failed(now_s)
        assert not breaker.lets_through(now_s + open_s - 0.1)
        now_s += open_s


def test_a_trial_whose_end_nobody_tells_is_forgotten() -> None:
    breaker = an_open_breaker()
    breaker.tries(110.0)
    assert not breaker.lets_through(119.9)
    assert breaker.lets_through(120.0)


def test_a_closed_breaker_counts_no_trials() -> None:
    breaker = Breaker(PARAMS)
    breaker.tries(100.0)
    assert breaker.lets_through(100.0)


@pytest.mark.parametrize(
    ("failures", "open_s", "most_open_s", "name"),
    [(0, 1.0, 2.0, "failures"), (1, 0.0, 2.0, "open_s"), (1, 3.0, 2.0, "open_s")],
)
def test_parameters_are_checked_by_name(
    failures: int, open_s: float, most_open_s: float, name: str
) -> None:
    with pytest.raises(ValueError, match=f"breaker.{name}"):
        BreakerParams(failures=failures, open_s=open_s, most_open_s=most_open_s)


@given(st.lists(st.tuples(st.sampled_from(["ok", "fail", "try"]), st.floats(0, 60))))
def test_whatever_happened_it_lets_somebody_through_again(events: list[tuple[str, float]]) -> None:
    breaker, now_s = Breaker(PARAMS), 0.0
    for event, after_s in events:
        now_s += after_s
        if event == "ok":
            breaker.succeeded()
        elif event == "fail":
            breaker.failed(now_s)
        else:
            breaker.tries(now_s)
    assert breaker.lets_through(now_s + PARAMS.most_open_s)
