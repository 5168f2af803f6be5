"""Does the small model do as well as the large one on this step? Bilinear matrix factorisation.

    logit(x) = w . ((p_small / |p_small| - p_large / |p_large|) * (T x)) + b

with x the standardised vector of the step, T its projection and p the two models' factors, as in
LLMRouter's MFRouter (after RouteLLM). For one pair this is a line through x whose slope is a
product of factors: T is never multiplied with the samples, so training takes seconds.

Deterministic: same samples, same seed, same bytes. Hosts: routing.training,
coordinator.learned_router."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

RANK: Final = 32
EPOCHS: Final = 300
LEARNING_RATE: Final = 0.01
WEIGHT_DECAY: Final = 0.3
"""Factors that are multiplied shrink slowly: this is mild (README has the figures)."""
_BETA_MEAN, _BETA_SQUARE, _EPSILON = 0.9, 0.999, 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    models: Array
    """(2, rank): small, large."""
    projection: Array
    """(rank, width of a step's vector)."""
    weights: Array
    """(rank,)."""
    bias: Array
    """(1,)."""

    def direction(self) -> Array:
        """The difference of the two models' unit factors."""
        small, large = (row / np.linalg.norm(row) for row in self.models)
        return np.asarray(small - large)

    def logits(self, x: Array) -> Array:
        slope = self.projection.T @ (self.weights * self.direction())
        return np.asarray(x @ slope + self.bias[0])


NAMES: Final = tuple(field.name for field in fields(Factors))


def initial_factors(width: int, rank: int, seed: int) -> Factors:
    chance = np.random.default_rng(seed)
    return Factors(
        models=chance.normal(size=(2, rank)),
        projection=chance.normal(size=(rank, width)) / np.sqrt(rank * width),
        weights=chance.normal(size=rank),
        bias=np.zeros(1),
    )


def loss_and_gradient(
    factors: Factors, x: Array, labels: Array, weight_decay: float
) -> tuple[float, Factors]:
    """Mean cross entropy, plus half the decay times the squares of projection and weights."""
    logits = factors.logits(x)
    loss = float(np.mean(np.logaddexp(0.0, logits) - labels * logits))
    loss += 0.5 * weight_decay * float(np.sum(factors.projection**2) + np.sum(factors.weights**2))

    error = (sigmoid(logits) - labels) / len(labels)
    pulled = x.T @ error
    direction = factors.direction()
    projected = factors.projection @ pulled
    by_direction = factors.weights * projected
    gradient = Factors(
        models=np.stack(
            [
                _through_norm(factors.models[0], by_direction),
                _through_norm(factors.models[1], -by_direction),
            ]
        ),
        projection=np.outer(factors.weights * direction, pulled)
        + weight_decay * factors.projection,
        weights=direction * projected + weight_decay * factors.weights,
        bias=np.array([error.sum()]),
    )
    return loss, gradient


def train_factors(
    x: Array,
    labels: Array,
    seed: int,
    *,
    rank: int = RANK,
    epochs: int = EPOCHS,
    weight_decay: float = WEIGHT_DECAY,
) -> Factors:
    """Adam over all samples at once."""
    now = {name: getattr(initial_factors(x.shape[1], rank, seed), name) for name in NAMES}
    mean = {name: np.zeros_like(value) for name, value in now.items()}
    square = {name: np.zeros_like(value) for name, value in now.items()}
    for epoch in range(1, epochs + 1):
        _, gradient = loss_and_gradient(Factors(**now), x, labels, weight_decay)
        for name in NAMES:
            slope = getattr(gradient, name)
            mean[name] = _BETA_MEAN * mean[name] + (1 - _BETA_MEAN) * slope
            square[name] = _BETA_SQUARE * square[name] + (1 - _BETA_SQUARE) * slope**2
            step = mean[name] / (1 - _BETA_MEAN**epoch)
            size = np.sqrt(square[name] / (1 - _BETA_SQUARE**epoch)) + _EPSILON
            now[name] = now[name] - LEARNING_RATE * step / size
    return Factors(**now)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Factors, and how the vectors they were fitted to are standardised."""

    mean: Array
    scale: Array
    factors: Factors

    def logits(self, vectors: Array) -> Array:
        return self.factors.logits((vectors - self.mean) / self.scale)


def fit(vectors: Array, labels: Array, seed: int) -> Fitted:
    mean, scale = vectors.mean(axis=0), vectors.std(axis=0)
    # A column that never changed says nothing, and must not explode where it does.
    scale = np.where(scale > 1e-9, scale, 1.0)
    factors = train_factors((vectors - mean) / scale, labels, seed)
    return Fitted(mean=mean, scale=scale, factors=factors)


def sigmoid(logits: Array) -> Array:
    # Through tanh: exp of a large logit would overflow.
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * logits)))


def _through_norm(factor: Array, slope: Array) -> Array:
    """The slope over `factor`, given the one over factor / |factor|."""
    length = np.linalg.norm(factor)
    unit = factor / length
    return np.asarray((slope - unit * (unit @ slope)) / length)
