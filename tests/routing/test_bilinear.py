"""The gradient is the loss's, and a planted pattern is found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from routing.bilinear import (
    NAMES,
    Factors,
    fit,
    initial_factors,
    loss_and_gradient,
    sigmoid,
    train_factors,
)
from routing.figures import auc


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_is_what_finite_differences_say(name: str) -> None:
    chance = np.random.default_rng(1)
    x, labels = chance.normal(size=(20, 6)), chance.integers(0, 2, 20).astype(float)
    factors = initial_factors(6, 3, seed=2)
    _, gradient = loss_and_gradient(factors, x, labels, 0.1)
    value, step = getattr(factors, name), 1e-6
    for at in np.ndindex(value.shape):
        moved = []
        for sign in (1, -1):
            other = value.copy()
            other[at] += sign * step
            moved.append(loss_and_gradient(replace(factors, **{name: other}), x, labels, 0.1)[0])
        expected = (moved[0] - moved[1]) / (2 * step)
        assert getattr(gradient, name)[at] == pytest.approx(expected, abs=1e-7), at


def test_the_logit_is_the_difference_of_two_bilinear_scores() -> None:
    factors = initial_factors(5, 4, seed=3)
    x = np.random.default_rng(0).normal(size=5)
    small, large = (
        factors.weights @ (row / np.linalg.norm(row) * (factors.projection @ x))
        for row in factors.models
    )
    assert factors.logits(x) == pytest.approx(small - large + factors.bias[0])


def test_a_planted_pattern_is_found_and_noise_is_not() -> None:
    chance = np.random.default_rng(4)
    vectors = chance.normal(size=(600, 30)) * 5 + 2
    slope = np.zeros(30)
    slope[3], slope[7] = 0.4, -0.4
    labels = (chance.random(600) < sigmoid((vectors - 2) @ slope)).astype(float)
    fitted = fit(vectors[:400], labels[:400], seed=0)
    best = auc(labels[400:], vectors[400:] @ slope)
    assert auc(labels[400:], fitted.logits(vectors[400:])) > best - 0.03
    shuffled = fit(vectors[:400], chance.permutation(labels[:400]), seed=0)
    assert abs(auc(labels[400:], shuffled.logits(vectors[400:])) - 0.5) < 0.12


def test_the_same_seed_gives_the_same_bytes() -> None:
    chance = np.random.default_rng(5)
    x, labels = chance.normal(size=(50, 8)), chance.integers(0, 2, 50).astype(float)

    def trained(seed: int) -> list[bytes]:
        factors = train_factors(x, labels, seed, epochs=20)
        return [getattr(factors, name).tobytes() for name in NAMES]

    assert trained(1) == trained(1)
    assert trained(1) != trained(2)


def test_a_column_that_never_changed_does_not_explode_where_it_does() -> None:
    chance = np.random.default_rng(6)
    vectors = np.hstack([chance.normal(size=(50, 2)), np.full((50, 1), 3.0)])
    fitted = fit(vectors, (vectors[:, 0] > 0).astype(float), seed=0)
    other = np.array([0.0, 0.0, 4.0])
    assert abs(float(fitted.logits(other))) < 10


def test_large_logits_do_not_overflow() -> None:
    assert sigmoid(np.array([-1e6, 0.0, 1e6])).tolist() == [0.0, 0.5, 1.0]
    factors = Factors(
        models=np.array([[1.0], [-1.0]]),
        projection=np.array([[1e6]]),
        weights=np.array([1.0]),
        bias=np.zeros(1),
    )
    loss, _ = loss_and_gradient(factors, np.array([[1.0]]), np.array([1.0]), 0.0)
    assert loss == pytest.approx(0.0)
