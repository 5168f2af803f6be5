"""The latency form, its inverse, and its correction by observed iterations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.step_time import (
    FALL_SHARE,
    MAX_FACTOR,
    MAX_RISE,
    MIN_FACTOR,
    RECOVERY_HALF_LIFE_S,
    StepTimeCoefficients,
    StepTimeModel,
    attended,
    largest_chunk,
)

CPU = StepTimeCoefficients(
    fixed_s=0.053, s_per_request=0.001, s_per_token=0.00049, s_per_token_context=0.34e-6
)


def a_model(trusted_tokens: int | None = None) -> StepTimeModel:
    return StepTimeModel(CPU, trusted_tokens=trusted_tokens)


@pytest.mark.parametrize(
    ("new_tokens", "context_tokens", "pairs"),
    [(0, 100, 0), (1, 0, 1), (1, 99, 100), (3, 10, 11 + 12 + 13)],
)
def test_every_new_token_attends_to_the_context_and_to_those_before_it(
    new_tokens: int, context_tokens: int, pairs: int
) -> None:
    assert attended(new_tokens, context_tokens) == pairs


def test_an_iteration_costs_the_sum_of_its_terms() -> None:
    expected_s = 0.053 + 2 * 0.001 + 100 * 0.00049 + 50_000 * 0.34e-6
    assert a_model().predicted_s(2, 100, 50_000) == pytest.approx(expected_s)


def test_an_iteration_of_no_request_takes_no_time() -> None:
    assert a_model().predicted_s(0, 0, 0) == 0.0


@pytest.mark.parametrize("name", ["fixed_s", "s_per_token"])
def test_a_coefficient_that_must_be_positive_is_named(name: str) -> None:
    values = {"fixed_s": 1.0, "s_per_request": 1.0, "s_per_token": 1.0, "s_per_token_context": 1.0}
    with pytest.raises(ValueError, match=rf"^step_time\.{name} must be > 0, got 0$"):
        StepTimeCoefficients(**{**values, name: 0})


@pytest.mark.parametrize("name", ["s_per_request", "s_per_token_context"])
def test_a_negative_coefficient_is_named(name: str) -> None:
    values = {"fixed_s": 1.0, "s_per_request": 1.0, "s_per_token": 1.0, "s_per_token_context": 1.0}
    with pytest.raises(ValueError, match=rf"^step_time\.{name} must be >= 0, got -1$"):
        StepTimeCoefficients(**{**values, name: -1})


def test_trust_in_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="trusted_tokens must be >= 1 or None, got 0"):
        a_model(trusted_tokens=0)


@pytest.mark.parametrize("rest_s", [0.0, -1.0])
def test_no_time_left_is_no_chunk(rest_s: float) -> None:
    assert largest_chunk(rest_s, 0.001, 1e-6, 0) == 0


def test_without_a_context_term_the_chunk_is_linear_in_the_time_left() -> None:
    assert largest_chunk(1.0, 0.25, 0.0, 10_000) == 4


def test_a_chunk_that_only_rounding_lets_in_is_refused() -> None:
    coefficients = StepTimeCoefficients(
        fixed_s=0.05, s_per_request=0.0, s_per_token=0.01, s_per_token_context=0.0
    )
    budget_s = 0.87
    assert largest_chunk(budget_s - 0.05, 0.01, 0.0, 0) == 82
    model = StepTimeModel(coefficients)
    assert model.predicted_s(1, 82, 0) > budget_s
    assert model.max_tokens_within(budget_s, 0, 0, 0, 0, 1000) == 81


@given(
    budget_s=st.floats(0, 5),
    requests=st.integers(0, 64),
    tokens=st.integers(0, 4096),
    product=st.floats(0, 1e8),
    context=st.integers(0, 200_000),
    limit=st.integers(0, 8192),
    factors=st.tuples(st.floats(0.25, 64), st.floats(0.25, 64)),
)
def test_the_chunk_is_the_largest_whose_prediction_is_within_the_budget(
    budget_s: float,
    requests: int,
    tokens: int,
    product: float,
    context: int,
    limit: int,
    factors: tuple[float, float],
) -> None:
    model = a_model()
    model.base_factor, model.context_factor = factors

    def with_chunk_s(chunk: int) -> float:
        return model.predicted_s(requests + 1, tokens + chunk, product + attended(chunk, context))

    chunk = model.max_tokens_within(budget_s, requests, tokens, product, context, limit)
    assert 0 <= chunk <= limit
    assert chunk == 0 or with_chunk_s(chunk) <= budget_s
    assert chunk == limit or with_chunk_s(chunk + 1) > budget_s * (1 - 1e-12)


def test_an_instance_that_has_seen_nothing_begins_with_the_trusted_chunk_and_grows() -> None:
    model = a_model(trusted_tokens=32)
    chunks = []
    for _ in range(5):
        chunk = model.max_tokens_within(10.0, 0, 0, 0, 0, 400)
        chunks.append(chunk)
        model.observe(model.predicted_s(1, chunk, attended(chunk, 0)), 1, chunk, attended(chunk, 0))
    assert chunks == [32, 64, 128, 256, 400]


def test_one_slow_iteration_shrinks_the_budget_at_once() -> None:
    model = a_model()
    before = model.max_tokens_within(0.5, 0, 0, 0, 0, 8192)
    model.observe(3 * model.predicted_s(1, 100, 0), 1, 100, 0)
    assert model.base_factor == pytest.approx(3)
    assert model.max_tokens_within(0.5, 0, 0, 0, 0, 8192) < before / 3


def test_one_fast_iteration_grows_the_budget_only_a_little() -> None:
    model = a_model()
    model.observe(0.5 * model.predicted_s(1, 100, 0), 1, 100, 0)
    assert model.base_factor == pytest.approx(1 - FALL_SHARE / 2)


def test_a_pause_of_the_machine_raises_a_factor_by_a_bounded_step() -> None:
    model = a_model()
    model.observe(1000.0, 1, 100, 0)
    assert model.base_factor == MAX_RISE


def test_a_chunk_may_be_trusted_that_no_iteration_has_shown() -> None:
    model = StepTimeModel(CPU, trusted_tokens=64)
    model.trust(16)
    assert model.trusted_tokens == 64
    model.trust(128)
    assert model.trusted_tokens == 128
    exact = StepTimeModel(CPU)
    exact.trust(128)
    assert exact.trusted_tokens is None


def test_factors_stay_within_their_limits() -> None:
    slow, fast = a_model(), a_model()
    for _ in range(200):
        slow.observe(1e6, 1, 100, 0)
        fast.observe(1e-9, 1, 100, 0)
    assert slow.base_factor == MAX_FACTOR
    assert fast.base_factor == MIN_FACTOR


def test_raised_factors_go_back_with_time_and_lowered_ones_stay() -> None:
    slow, fast = a_model(), a_model()
    slow.observe(3 * slow.predicted_s(1, 100, 0), 1, 100, 0)
    fast.observe(0.5 * fast.predicted_s(1, 100, 0), 1, 100, 0)
    slow.forget(RECOVERY_HALF_LIFE_S)
    assert slow.base_factor == pytest.approx(2)
    slow.forget(1000.0)
    assert slow.base_factor == pytest.approx(1)
    lowered = fast.base_factor
    fast.forget(1000.0)
    assert fast.base_factor == lowered


def test_short_contexts_never_talk_the_context_term_down() -> None:
    model = a_model()
    for _ in range(1000):
        model.observe(0.3 * model.predicted_s(4, 100, 400), 4, 100, 400)
    assert model.base_factor == MIN_FACTOR
    assert model.context_factor == 1.0


def test_a_long_context_that_is_slow_is_blamed_on_the_context_term() -> None:
    model = a_model()
    pairs = 1e6  # 0.34 s of context against 0.1 s of everything else
    base_s = model.predicted_s(1, 100, 0)
    model.observe(base_s + 2 * 0.34, 1, 100, pairs)
    assert model.context_factor == pytest.approx(2)
    assert model.base_factor == 1.0


def test_a_base_that_is_too_large_moves_the_context_term_by_less_than_the_residual() -> None:
    model = a_model()
    pairs = 1e6
    step_s = model.predicted_s(1, 100, pairs) - 0.05
    model.observe(step_s, 1, 100, pairs)
    assert 1 - FALL_SHARE < model.context_factor < 1
    assert model.base_factor == 1.0


@pytest.mark.parametrize(("step_s", "requests"), [(0.0, 1), (-1.0, 1), (5.0, 0)])
def test_what_was_no_iteration_teaches_nothing(step_s: float, requests: int) -> None:
    model = a_model(trusted_tokens=8)
    model.observe(step_s, requests, 100, 0)
    assert (model.base_factor, model.context_factor, model.trusted_tokens) == (1.0, 1.0, 8)


@given(
    truth=st.tuples(*[st.floats(0.3, 3)] * 2),
    steps=st.lists(
        st.tuples(st.integers(1, 8), st.integers(1, 512), st.integers(0, 16_000)), min_size=1
    ),
)
def test_right_after_a_slow_iteration_the_same_one_is_not_underestimated(
    truth: tuple[float, float], steps: list[tuple[int, int, int]]
) -> None:
    model = a_model()
    real = a_model()
    real.base_factor, real.context_factor = truth
    for requests, tokens, context in steps:
        pairs = attended(tokens, context)
        step_s = real.predicted_s(requests, tokens, pairs)
        slower = step_s > model.predicted_s(requests, tokens, pairs)
        # A rise is bounded per iteration; three of the same reach any error of this test.
        for _ in range(3):
            model.observe(step_s, requests, tokens, pairs)
        assert not slower or model.predicted_s(requests, tokens, pairs) >= step_s * (1 - 1e-9)
