"""AUC, and what each policy's choices are worth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from routing.figures import Outcomes, auc, policy_rows


@pytest.mark.parametrize(
    ("labels", "scores", "expected"),
    [
        ([0, 0, 1, 1], [1, 2, 3, 4], 1.0),
        ([0, 0, 1, 1], [4, 3, 2, 1], 0.0),
        ([0, 1, 0, 1], [1, 1, 1, 1], 0.5),
        ([0, 1, 1], [2, 1, 3], 0.5),
        ([0, 0, 1, 1], [1, 2, 2, 3], 0.875),
    ],
    ids=["sorted", "reversed", "all_tied", "one_swapped", "a_tie_counts_half"],
)
def test_auc(labels: list[float], scores: list[float], expected: float) -> None:
    assert auc(np.array(labels, float), np.array(scores, float)) == expected


def test_auc_of_one_label_is_none() -> None:
    assert math.isnan(auc(np.ones(3), np.arange(3.0)))


def test_auc_counts_pairs() -> None:
    chance = np.random.default_rng(0)
    labels = chance.integers(0, 2, 60).astype(float)
    scores = chance.integers(0, 9, 60).astype(float)
    pairs = [(p, n) for p in scores[labels == 1] for n in scores[labels == 0]]
    by_hand = sum((p > n) + 0.5 * (p == n) for p, n in pairs) / len(pairs)
    assert auc(labels, scores) == pytest.approx(by_hand)


def test_the_policies_of_four_calls() -> None:
    outcomes = Outcomes(
        small_scores=np.array([1.0, 0.0, 0.0, 1.0]),
        large_scores=np.array([1.0, 1.0, 0.0, 0.0]),
        small_costs=np.array([1.0, 1.0, 1.0, 1.0]),
        large_costs=np.array([2.0, 4.0, 2.0, 2.0]),
    )
    rows = policy_rows(outcomes, np.array([True, True, False, False]))
    assert {row.policy: (row.accuracy, row.cost_share, row.large_share) for row in rows} == {
        "always small": (0.5, 0.4, 0.0),
        "always large": (0.5, 1.0, 1.0),
        "random": (0.5, 0.7, 0.5),
        "learned": (0.75, 0.8, 0.5),
        "oracle": (0.75, 0.7, 0.25),
    }
    assert rows[1].accuracy_per_cost == 0.5
