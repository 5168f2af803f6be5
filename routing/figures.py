"""What a router is worth: AUC of its probabilities, accuracy and cost of its choices beside others.

Pure. Host: routing.report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Choices = NDArray[np.bool_]


def auc(labels: Array, scores: Array) -> float:
    """The chance that a positive has the higher score than a negative, ties counted half; NaN
    where one of the two is missing."""
    positives = labels > 0.5
    count = int(positives.sum())
    others = len(labels) - count
    if count == 0 or others == 0:
        return float("nan")
    _, place, size = np.unique(scores, return_inverse=True, return_counts=True)
    middle_rank = np.cumsum(size) - (size - 1) / 2
    return float((middle_rank[place][positives].sum() - count * (count + 1) / 2) / (count * others))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Of the same calls on each of the two models."""

    small_scores: Array
    large_scores: Array
    small_costs: Array
    large_costs: Array

    @property
    def small_suffices(self) -> Array:
        """The label: 1 where the large model does no better."""
        return np.asarray((self.small_scores >= self.large_scores).astype(np.float64))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRow:
    policy: str
    accuracy: float
    cost_share: float
    """Of what the large model alone costs."""
    large_share: float

    @property
    def accuracy_per_cost(self) -> float:
        return self.accuracy / self.cost_share if self.cost_share else float("inf")


def policy_rows(outcomes: Outcomes, uses_large: Choices) -> list[PolicyRow]:
    """`uses_large`: what the router chose. Random sends as many calls to the large model as it, and
    is an expected value; the oracle knows both scores, and takes the small model on a tie."""
    count = len(uses_large)
    by_label = outcomes.small_suffices < 0.5
    return [
        _row("always small", outcomes, np.zeros(count)),
        _row("always large", outcomes, np.ones(count)),
        _row("random", outcomes, np.full(count, uses_large.mean())),
        _row("learned", outcomes, uses_large.astype(np.float64)),
        _row("oracle", outcomes, by_label.astype(np.float64)),
    ]


def _row(policy: str, outcomes: Outcomes, large: Array) -> PolicyRow:
    scores = large * outcomes.large_scores + (1 - large) * outcomes.small_scores
    costs = large * outcomes.large_costs + (1 - large) * outcomes.small_costs
    return PolicyRow(
        policy=policy,
        accuracy=float(scores.mean()),
        cost_share=float(costs.sum() / outcomes.large_costs.sum()),
        large_share=float(large.mean()),
    )
