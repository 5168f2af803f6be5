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
    NO_BATCH,
    RECOVERY_HALF_LIFE_S,
    Batch,
    StepTimeCoefficients,
    StepTimeModel,
    attended,
    largest_chunk,
)

CPU = StepTimeCoefficients(
    fixed_s=0.053,
    s_per_request=0.001,
    s_per_token=0.00049,
    s_per_token_context=0.34e-6,
    s_per_context_token=2e-6,
)
PLAIN = Batch(1, 100)


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
    expected_s = 0.053 + 2 * 0.001 + 100 * 0.00049 + 50_000 * 0.34e-6 + 4000 * 2e-6
    assert a_model().predicted_s(Batch(2, 100, 50_000, 4000)) == pytest.approx(expected_s)


def test_an_iteration_of_no_request_takes_no_time() -> None:
    assert a_model().predicted_s(NO_BATCH) == 0.0


@pytest.mark.parametrize("name", ["fixed_s", "s_per_token"])
def test_a_coefficient_that_must_be_positive_is_named(name: str) -> None:
    values = {"fixed_s": 1.0, "s_per_request": 1.0, "s_per_token": 1.0, "s_per_token_context": 1.0}
    with pytest.raises(ValueError, match=rf"^step_time\.{name} must be > 0, got 0$"):
        StepTimeCoefficients(**{**values, name: 0})


@pytest.mark.parametrize("name", ["s_per_request", "s_per_token_context", "s_per_context_token"])
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
    assert model.predicted_s(Batch(1, 82)) > budget_s
    assert model.max_tokens_within(budget_s, NO_BATCH, 0, 1000) == 81


BATCHES = st.builds(
    Batch,
    requests=st.integers(0, 64),
    tokens=st.integers(0, 4096),
    pairs=st.floats(0, 1e8),
    context_tokens=st.integers(0, 10**6),
)


@given(
    budget_s=st.floats(0, 5),
    batch=BATCHES,
    context=st.integers(0, 200_000),
    limit=st.integers(0, 8192),
    factors=st.tuples(*[st.floats(0.25, 64)] * 3),
)
def test_the_chunk_is_the_largest_whose_prediction_is_within_the_budget(
    budget_s: float, batch: Batch, context: int, limit: int, factors: tuple[float, float, float]
) -> None:
    model = a_model()
    model.base_factor, model.context_factor, model.read_factor = factors

    def with_chunk_s(tokens: int) -> float:
        return model.predicted_s(batch.plus(tokens, context))

    chunk = model.max_tokens_within(budget_s, batch, context, limit)
    assert 0 <= chunk <= limit
    assert chunk == 0 or with_chunk_s(chunk) <= budget_s
    assert chunk == limit or with_chunk_s(chunk + 1) > budget_s * (1 - 1e-12)


def test_two_batches_joined_are_as_one() -> None:
    one, other = NO_BATCH.plus(3, 10), NO_BATCH.plus(1, 99)
    assert one.joined(other) == NO_BATCH.plus(3, 10).plus(1, 99)


@pytest.mark.parametrize("tokens", [0, 1, 511, 512, 513, 5000])
def test_a_prefill_takes_the_time_of_its_chunks(tokens: int) -> None:
    model, chunk_tokens, context = a_model(), 512, 700
    model.base_factor, model.context_factor, model.read_factor = 1.5, 2.0, 3.0
    expected_s, left, done = 0.0, tokens, context
    while left:
        chunk = min(left, chunk_tokens)
        expected_s += model.predicted_s(NO_BATCH.plus(chunk, done))
        left, done = left - chunk, done + chunk
    assert model.prefill_s(tokens, context, chunk_tokens) == pytest.approx(expected_s)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("context", [0, 4_000, 60_000])
@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_the_smallest_worthwhile_chunk_spends_at_most_its_share_on_what_it_repeats(
    context: int, share: float, alone: bool
) -> None:
    model = a_model()
    repeated_s = 0.001 + 2e-6 * context + (0.053 if alone else 0.0)

    def share_of(chunk: int) -> float:
        work_s = 0.00049 * chunk + 0.34e-6 * attended(chunk, context)
        return repeated_s / (repeated_s + work_s)

    chunk = model.worthwhile_tokens(context, share, alone=alone)
    assert share_of(chunk) <= share * (1 + 1e-9)
    assert chunk == 1 or share_of(chunk - 1) >= share * (1 - 1e-9)


def test_trust_grows_with_the_largest_iteration_seen() -> None:
    model = a_model(trusted_tokens=32)
    trusted = []
    for tokens in (20, 5, 64, 1):
        model.observe(0.1, Batch(1, tokens))
        trusted.append(model.trusted_tokens)
    assert trusted == [40, 40, 128, 128]


def test_one_slow_iteration_shrinks_the_budget_at_once() -> None:
    model = a_model()
    before = model.max_tokens_within(0.5, NO_BATCH, 0, 8192)
    model.observe(3 * model.predicted_s(PLAIN), PLAIN)
    assert model.base_factor == pytest.approx(3)
    assert model.max_tokens_within(0.5, NO_BATCH, 0, 8192) < before / 3


def test_one_fast_iteration_grows_the_budget_only_a_little() -> None:
    model = a_model()
    model.observe(0.5 * model.predicted_s(PLAIN), PLAIN)
    assert model.base_factor == pytest.approx(1 - FALL_SHARE / 2)


def test_a_pause_of_the_machine_raises_a_factor_by_a_bounded_step() -> None:
    model = a_model()
    model.observe(1000.0, PLAIN)
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
        slow.observe(1e6, PLAIN)
        fast.observe(1e-9, PLAIN)
    assert slow.base_factor == MAX_FACTOR
    assert fast.base_factor == MIN_FACTOR


def test_raised_factors_go_back_with_time_and_lowered_ones_stay() -> None:
    slow, fast = a_model(), a_model()
    slow.observe(3 * slow.predicted_s(PLAIN), PLAIN)
    fast.observe(0.5 * fast.predicted_s(PLAIN), PLAIN)
    slow.forget(RECOVERY_HALF_LIFE_S)
    assert slow.base_factor == pytest.approx(2)
    slow.forget(1000.0)
    assert slow.base_factor == pytest.approx(1)
    lowered = fast.base_factor
    fast.forget(1000.0)
    assert fast.base_factor == lowered


def test_short_contexts_never_talk_the_context_term_down() -> None:
    model, short = a_model(), Batch(4, 100, 400, 400)
    for _ in range(1000):
        model.observe(0.3 * model.predicted_s(short), short)
    assert model.base_factor == MIN_FACTOR
    assert model.context_factor == 1.0


def test_a_long_context_that_is_slow_is_blamed_on_the_context_term() -> None:
    model = a_model()
    pairs = 1e6  # 0.34 s of context against 0.1 s of everything else
    base_s = model.predicted_s(PLAIN)
    model.observe(base_s + 2 * 0.34, Batch(1, 100, pairs))
    assert model.context_factor == pytest.approx(2)
    assert model.base_factor == 1.0


def test_long_decodes_teach_the_reads_and_say_nothing_of_prefill() -> None:
    """The same context seen by decodes only: a cheap read must not grow a prefill chunk."""
    model = a_model()
    decodes = Batch(2, 2, 120_000, 120_000)
    chunk = model.max_tokens_within(0.5, NO_BATCH, 60_000, 8192)
    for _ in range(1000):
        model.observe(0.5 * model.predicted_s(decodes), decodes)
    assert model.read_factor == MIN_FACTOR
    assert (model.base_factor, model.context_factor) == (1.0, 1.0)
    grown_s = 2e-6 * 60_000 * (1 - MIN_FACTOR)  # what the chunk's own read takes less
    assert model.max_tokens_within(0.5 - grown_s, NO_BATCH, 60_000, 8192) == chunk


def test_slow_reads_are_blamed_on_the_reads() -> None:
    model = a_model()
    decodes = Batch(2, 2, 120_000, 120_000)
    model.observe(model.predicted_s(decodes) + 0.24, decodes)
    assert model.read_factor == pytest.approx(2)
    assert (model.base_factor, model.context_factor) == (1.0, 1.0)


def test_a_base_that_is_too_large_moves_the_context_term_by_less_than_the_residual() -> None:
    model = a_model()
    pairs = 1e6
    step_s = model.predicted_s(Batch(1, 100, pairs)) - 0.05
    model.observe(step_s, Batch(1, 100, pairs))
    assert 1 - FALL_SHARE < model.context_factor < 1
    assert model.base_factor == 1.0


@pytest.mark.parametrize(("step_s", "requests"), [(0.0, 1), (-1.0, 1), (5.0, 0)])
def test_what_was_no_iteration_teaches_nothing(step_s: float, requests: int) -> None:
    model = a_model(trusted_tokens=8)
    model.observe(step_s, Batch(requests, 100))
    assert (model.base_factor, model.context_factor, model.trusted_tokens) == (1.0, 1.0, 8)


@given(
    truth=st.tuples(*[st.floats(0.3, 3)] * 3),
    steps=st.lists(
        st.tuples(st.integers(1, 8), st.integers(1, 512), st.integers(0, 16_000)), min_size=1
    ),
)
def test_right_after_a_slow_iteration_the_same_one_is_not_underestimated(
    truth: tuple[float, float, float], steps: list[tuple[int, int, int]]
) -> None:
    model = a_model()
    real = a_model()
    real.base_factor, real.context_factor, real.read_factor = truth
    for requests, tokens, context in steps:
        batch = Batch(requests, tokens, attended(tokens, context), context)
        step_s = real.predicted_s(batch)
        slower = step_s > model.predicted_s(batch)
        # A rise is bounded per iteration; a few of the same reach any error of this test.
        for _ in range(4):
            model.observe(step_s, batch)
        assert not slower or model.predicted_s(batch) >= step_s * (1 - 1e-9)
