"""A model whose shadows are not used rests, and gets another chance."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.use_rate import UseRate, UseRateParams


def some_params(**changes: Any) -> UseRateParams:
    defaults = {"min_share": 0.2, "window_tokens": 1000, "rest_s": 60.0}
    return UseRateParams(**defaults | changes)


@pytest.mark.parametrize(
    ("computed", "used", "rests"),
    [(499, 0, False), (500, 0, True), (900, 179, True), (900, 180, False), (900, 900, False)],
    ids=["too_little_to_say", "never_used", "below", "at", "all"],
)
def test_a_model_rests_below_its_least_share(computed: int, used: int, rests: bool) -> None:
    rate = UseRate(some_params())
    rate.computed(computed)
    rate.used(used)
    assert rate.rests(100.0) is rests


def test_a_rest_ends_with_a_clean_slate() -> None:
    rate = UseRate(some_params())
    rate.computed(900)
    assert rate.rests(100.0)
    rate.used(10)
    assert rate.rests(159.9)
    assert not rate.rests(160.0)
    assert rate.used_share is None
    rate.computed(900)
    assert rate.rests(161.0), "and no better: it rests again"


def test_old_work_is_forgotten_by_halves() -> None:
    rate = UseRate(some_params())
    rate.computed(1000)
    rate.used(1000)
    for _ in range(40):
        rate.computed(500)
    assert rate.used_share is not None
    assert rate.used_share < 0.01


def test_a_least_share_of_nothing_never_lets_a_model_rest() -> None:
    rate = UseRate(some_params(min_share=0.0))
    rate.computed(100_000)
    assert not rate.rests(100.0)


@pytest.mark.parametrize(
    "wrong", [{"min_share": -0.1}, {"min_share": 1.1}, {"window_tokens": 0}, {"rest_s": 0.0}]
)
def test_parameters_are_checked_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"use_rate.{next(iter(wrong))}"):
        some_params(**wrong)


@given(st.lists(st.tuples(st.integers(0, 5000), st.floats(0, 1)), max_size=50))
def test_the_window_is_never_exceeded_and_the_share_is_one(
    work: list[tuple[int, float]],
) -> None:
    rate = UseRate(some_params())
    for computed, share in work:
        rate.computed(computed)
        rate.used(int(computed * share) if computed <= 1000 else 0)
        assert rate._computed <= 1000
