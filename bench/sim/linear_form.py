"""The controller's linear form (`policy.step_time`), fitted to the H100 form: start values for an
instance that has seen nothing yet, and how wrong they are.

Relative errors are fitted, because a budget is a share of a step, over iterations as an instance
sees them: decodes alone, one chunk alone, both. The form cannot hold them all: it counts a decode's
context like a chunk's, though one waits for memory and the other for arithmetic, and weights that
are read anyway make the first tokens free. Hence the error is part of the answer.

Pure. Hosts: bench.sim, and whoever writes a hardware profile."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from bench.sim.latency import Chunk, Iteration
from policy.step_time import StepTimeCoefficients, attended

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.sim.latency import LatencyModel

DECODES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CHUNK_TOKENS = (64, 128, 256, 512, 1024, 2048)
CONTEXT_TOKENS = (256, 1024, 4096, 16_384, 65_536)
MIN_COEFFICIENT_S = 1e-9
"""What stands for nothing where the form demands more than zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitError:
    """Of predicted over real iteration time, as shares; a bias below zero predicts too little."""

    iterations: int
    mean_share: float
    p95_share: float
    max_share: float
    bias_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearFit:
    coefficients: StepTimeCoefficients
    error: FitError
    """Of all iterations."""
    errors_by_kind: dict[str, FitError]


def fit_step_time(latency: LatencyModel) -> LinearFit:
    """Non-negative least squares of the relative error; each kind of iteration weighs the same."""
    by_kind = _iterations(latency)
    iterations = [one for kind in by_kind.values() for one in kind]
    names = [field.name for field in fields(StepTimeCoefficients)]
    rows = np.array([[TERMS[name](one) for name in names] for one in iterations], dtype=float)
    real_s = np.array([latency.iteration_s(one) for one in iterations])
    weights = np.concatenate([[len(kind) ** -0.5] * len(kind) for kind in by_kind.values()])
    solution = _non_negative(rows * (weights / real_s)[:, None], weights)
    shares = rows @ solution / real_s - 1
    parts = np.split(shares, np.cumsum([len(kind) for kind in by_kind.values()])[:-1])
    found = dict(zip(names, map(float, solution), strict=True))
    found |= {name: max(found[name], MIN_COEFFICIENT_S) for name in ("fixed_s", "s_per_token")}
    return LinearFit(
        coefficients=StepTimeCoefficients(**found),
        error=_error(shares),
        errors_by_kind={kind: _error(part) for kind, part in zip(by_kind, parts, strict=True)},
    )


def _iterations(latency: LatencyModel) -> dict[str, list[Iteration]]:
    """A batch whose KV would not fit the instance is left out: it can never run."""
    pool = latency.kv_pool_tokens
    decodes = [
        Iteration(decode_contexts=(context,) * count)
        for count in DECODES
        for context in CONTEXT_TOKENS
        if count * context <= pool
    ]
    chunks = [
        Iteration(chunks=(Chunk(tokens, context),))
        for tokens in CHUNK_TOKENS
        for context in (0, *CONTEXT_TOKENS)
        if tokens + context <= pool
    ]
    mixed = [
        Iteration(decode.decode_contexts, chunk.chunks) for decode in decodes for chunk in chunks
    ]
    return {"decode": decodes, "prefill": chunks, "mixed": mixed}


def _pairs(iteration: Iteration) -> float:
    decodes = sum(attended(1, context) for context in iteration.decode_contexts)
    return decodes + sum(attended(c.new_tokens, c.context_tokens) for c in iteration.chunks)


def _context_tokens(iteration: Iteration) -> float:
    return sum(iteration.decode_contexts) + sum(c.context_tokens for c in iteration.chunks)


TERMS: dict[str, Callable[[Iteration], float]] = {
    "fixed_s": lambda iteration: 1,
    "s_per_request": lambda iteration: iteration.sequences,
    "s_per_token": lambda iteration: iteration.tokens,
    "s_per_token_context": _pairs,
    "s_per_context_token": _context_tokens,
}
"""What each coefficient of the form is multiplied with; a form may have fewer of them."""


def _non_negative(rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The best of the least-squares solutions of every set of columns that has no negative number:
    exact, and with so few columns quicker than it sounds."""
    width = rows.shape[1]
    subsets = [c for size in range(1, width + 1) for c in combinations(range(width), size)]
    candidates = [np.zeros(width)]
    for subset in subsets:
        columns = list(subset)
        part = _least_squares(rows[:, columns], wanted)
        if (part >= 0).all():
            candidate = np.zeros(width)
            candidate[columns] = part
            candidates.append(candidate)
    return min(candidates, key=lambda candidate: float(((rows @ candidate - wanted) ** 2).sum()))


def _least_squares(rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Columns differ by a factor of 10^9 or more, so each is scaled to length one."""
    lengths = np.sqrt((rows**2).sum(axis=0))
    solution: np.ndarray = np.linalg.lstsq(rows / lengths, wanted, rcond=None)[0] / lengths
    return solution


def _error(shares: Sequence[float] | np.ndarray) -> FitError:
    sizes = np.abs(shares)
    return FitError(
        iterations=len(sizes),
        mean_share=float(sizes.mean()),
        p95_share=float(np.quantile(sizes, 0.95)),
        max_share=float(sizes.max()),
        bias_share=float(np.mean(shares)),
    )
