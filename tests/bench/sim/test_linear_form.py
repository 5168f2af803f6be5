"""What a controller may start from, and that its error is told."""

from __future__ import annotations

import numpy as np
import pytest

from bench.sim.hardware import LatencyMode, architectures
from bench.sim.latency import Chunk, Iteration, LatencyModel
from bench.sim.linear_form import TERMS, _non_negative, fit_step_time

DENSE = ["Qwen2.5-7B", "Llama-3.1-8B", "Llama-3.1-70B", "Mistral-Nemo-12B"]


@pytest.mark.parametrize("model", sorted(architectures()))
def test_fit_reports_what_it_misses(model: str) -> None:
    fit = fit_step_time(LatencyModel(model, LatencyMode.VLLM_TESTBED))
    assert list(fit.errors_by_kind) == ["decode", "prefill", "mixed"]
    assert fit.error.iterations == sum(one.iterations for one in fit.errors_by_kind.values())
    for error in (fit.error, *fit.errors_by_kind.values()):
        assert abs(error.bias_share) <= error.mean_share <= error.p95_share <= error.max_share
    # A constant would miss by more than half: prefill of 2,048 tokens takes ten decodes.
    assert fit.error.mean_share < 0.35


@pytest.mark.parametrize("model", DENSE)
def test_dense_models_are_held_within_a_fifth(model: str) -> None:
    fit = fit_step_time(LatencyModel(model))
    assert all(error.mean_share < 0.2 for error in fit.errors_by_kind.values())


def test_terms_count_what_the_form_says() -> None:
    iteration = Iteration(decode_contexts=(10, 20), chunks=(Chunk(4, 100),))
    counted = {name: term(iteration) for name, term in TERMS.items()}
    assert counted == {
        "fixed_s": 1,
        "s_per_request": 3,
        "s_per_token": 6,
        "s_per_token_context": 11 + 21 + (101 + 102 + 103 + 104),
        "s_per_context_token": 130,
    }


def test_solution_is_found_and_never_negative() -> None:
    rng = np.random.default_rng(5)
    rows = rng.uniform(0, 1, (40, 3)) * [1.0, 1e-6, 1e3]
    wanted = rows @ [2.0, 3e6, 0.0]
    np.testing.assert_allclose(_non_negative(rows, wanted), [2.0, 3e6, 0.0], atol=1e-9)
    assert (_non_negative(rows, rows @ [2.0, -3e6, 1.0]) >= 0).all()
