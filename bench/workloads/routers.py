"""Which model serves each call of a session, in a replay: a Markov chain at a given switch rate, a
matrix of known scores, or chance. A route is an index into the router's models for every call.

These choose before the session runs and see no latency, so that every approach replays the same
routes. The coordinator's own routers are in `coordinator.routers`."""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bench.workloads.score_matrix import ScoreMatrix
    from bench.workloads.sessions import PublishedKind

MIN_MODELS, MAX_MODELS = 2, 5

Route = tuple[int, ...]


class RoutingPolicy(StrEnum):
    """What a router that knows every model's score does with it (paper, appendix C)."""

    ACCURACY_PER_COST = "accuracy_per_cost"
    ACCURACY = "accuracy"
    RANDOM = "random"


class RouteFigures(NamedTuple):
    switch_share: float
    """Of the calls, first calls included, as Table 1 counts."""
    switches_per_session: float


def uniform_switches(models: int, switch_probability: float) -> np.ndarray:
    """A chain that leaves its model with the same probability for each of the others."""
    _check_models(models)
    if not 0 <= switch_probability <= 1:
        raise ValueError(f"switch_probability must be 0 to 1, got {switch_probability}")
    chain = np.full((models, models), switch_probability / (models - 1))
    np.fill_diagonal(chain, 1 - switch_probability)
    return chain


def table1_switch_probability(published: PublishedKind) -> float:
    """Per step, so that the published share of all calls comes out: the first call of a session
    cannot be a switch."""
    calls = published.calls_per_session
    return min(1.0, published.switch_share * calls / (calls - 1))


def markov_route(calls: int, chain: np.ndarray, rng: np.random.Generator) -> Route:
    """`chain[a, b]` is the probability that b follows a; the first model is drawn evenly."""
    models = len(chain)
    _check_models(models)
    if chain.shape != (models, models) or (chain < 0).any():
        raise ValueError(f"a chain is a square of shares >= 0, got {chain.tolist()}")
    if not np.allclose(chain.sum(axis=1), 1):
        raise ValueError(f"each row of a chain adds up to 1, got {chain.sum(axis=1).tolist()}")
    # The last step is 1 whatever rounding says, so that no draw falls behind it.
    steps = np.cumsum(chain, axis=1)
    steps[:, -1] = 1.0
    draws = rng.random(calls)
    route = [int(draws[0] * models)]
    for draw in draws[1:]:
        route.append(int(np.searchsorted(steps[route[-1]], draw, side="right")))
    return tuple(route)


def random_route(calls: int, models: int, rng: np.random.Generator) -> Route:
    _check_models(models)
    return tuple(int(model) for model in rng.integers(models, size=calls))


def query_scores(
    calls: int, task: str, matrix: ScoreMatrix, rng: np.random.Generator
) -> np.ndarray:
    """Of a session's calls, by model: it walks through consecutive queries of its task, from a
    random one on and round."""
    _check_models(len(matrix.models))
    scores = matrix.of_task(task)
    walked: np.ndarray = scores[(int(rng.integers(len(scores))) + np.arange(calls)) % len(scores)]
    return walked


def matrix_route(
    calls: int,
    task: str,
    matrix: ScoreMatrix,
    policy: RoutingPolicy,
    rng: np.random.Generator,
) -> tuple[Route, tuple[float, ...]]:
    """Also returns the score of the chosen model at each call."""
    rows = query_scores(calls, task, matrix, rng)
    route = policy_route(rows, matrix, policy, rng)
    return route, tuple(float(row[model]) for row, model in zip(rows, route, strict=True))


def policy_route(
    rows: np.ndarray, matrix: ScoreMatrix, policy: RoutingPolicy, rng: np.random.Generator
) -> Route:
    if policy is RoutingPolicy.RANDOM:
        return random_route(len(rows), len(matrix.models), rng)
    prices = np.array(matrix.dollars_per_million_tokens)
    return tuple(_best(row, prices, policy) for row in rows)


def route_figures(routes: Iterable[Sequence[int]]) -> RouteFigures:
    routes = list(routes)
    switches = sum(sum(a != b for a, b in pairwise(route)) for route in routes)
    return RouteFigures(
        switch_share=switches / sum(len(route) for route in routes),
        switches_per_session=switches / len(routes),
    )


def _best(scores: np.ndarray, prices: np.ndarray, policy: RoutingPolicy) -> int:
    """The cheapest of the best, the first of equal ones. If no model can do it, the cheapest."""
    worth = scores / prices if policy is RoutingPolicy.ACCURACY_PER_COST else scores
    return min(range(len(worth)), key=lambda model: (-worth[model], prices[model], model))


def _check_models(models: int) -> None:
    if not MIN_MODELS <= models <= MAX_MODELS:
        raise ValueError(f"a router has {MIN_MODELS} to {MAX_MODELS} models, got {models}")
