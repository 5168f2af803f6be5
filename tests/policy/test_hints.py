"""Scores and plans: what they make of the next call's probabilities, and how they end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.hints import Advanced, HintEnd, advanced, with_plan, with_scores

PRIOR = {"a": 0.5, "b": 0.3, "c": 0.2}
FOLLOWED, NOT = HintEnd.FOLLOWED, HintEnd.NOT_FOLLOWED


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ({"b": 0.9}, {"a": 0.1 * 5 / 7, "b": 0.9, "c": 0.1 * 2 / 7}),
        ({"a": 0.0, "b": 1.0, "c": 0.0}, {"a": 0.0, "b": 1.0, "c": 0.0}),
        ({"a": 0.2, "b": 0.2, "c": 0.2}, {"a": 0.2, "b": 0.2, "c": 0.2}),
        ({"gone": 1.0}, {"a": 0.0, "b": 0.0, "c": 0.0}),
    ],
    ids=["rest_is_the_priors", "certain", "less_than_one", "not_a_target"],
)
def test_scores_win_over_the_prior(scores: dict[str, float], expected: dict[str, float]) -> None:
    assert with_scores(scores, PRIOR) == pytest.approx(expected)


def test_a_prior_that_knows_nothing_of_the_rest_gives_it_nothing() -> None:
    assert with_scores({"a": 0.5}, {"a": 1.0, "b": 0.0}) == {"a": 0.5, "b": 0.0}


@given(
    st.dictionaries(st.sampled_from("abc"), st.floats(0, 1), min_size=1).filter(
        lambda scores: sum(scores.values()) <= 1
    )
)
def test_scores_that_sum_to_at_most_one_stay_so(scores: dict[str, float]) -> None:
    assert sum(with_scores(scores, PRIOR).values()) <= 1 + 1e-9


def test_a_plan_counts_by_the_step_that_needs_a_model_first() -> None:
    assert with_plan(["b", "a", "b"], PRIOR) == {"a": 0.5, "b": 1.0, "c": 0.0}


@pytest.mark.parametrize(
    ("scores", "plan", "model", "expected"),
    [
        ({}, ["b", "c"], "b", Advanced(("c",), FOLLOWED)),
        ({}, ["b"], "b", Advanced((), FOLLOWED)),
        ({}, ["b", "c"], "a", Advanced((), NOT)),
        ({"b": 0.7, "c": 0.1}, [], "b", Advanced((), FOLLOWED)),
        ({"b": 0.7, "c": 0.1}, [], "c", Advanced((), NOT)),
        ({"b": 0.7}, [], "a", Advanced((), NOT)),
    ],
    ids=["goes_on", "ends", "left", "likeliest", "less_likely", "unnamed"],
)
def test_a_call_takes_its_model_off_the_plan_and_ends_scores(
    scores: dict[str, float], plan: list[str], model: str, expected: Advanced
) -> None:
    assert advanced(scores, plan, model) == expected
