"""What a switch costs: first token and input price."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.quote import InputPrice, Quote, coarse_queue_s, quote
from policy.step_time import StepTimeCoefficients, StepTimeModel

STEP_TIME = StepTimeModel(
    StepTimeCoefficients(fixed_s=0.1, s_per_request=0.0, s_per_token=0.001, s_per_token_context=0.0)
)
PRICE = InputPrice(uncached=2.0, cached=0.2)


def a_quote(prompt_tokens: int, warm_tokens: int, **more: float) -> Quote:
    times = {"queue_s": 0.0, "handoff_s": 0.0} | more
    return quote(
        prompt_tokens=prompt_tokens,
        warm_tokens=warm_tokens,
        step_time=STEP_TIME,
        price=PRICE,
        **times,
    )


@pytest.mark.parametrize(
    ("prompt_tokens", "warm_tokens", "uncached_tokens", "ttft_s", "price"),
    [
        (1000, 0, 1000, 1.1, 0.002),
        (1000, 900, 100, 0.2, 0.00038),
        (1000, 1000, 0, 0.101, 0.0002),
        (1000, 5000, 0, 0.101, 0.0002),
        (0, 0, 0, 0.101, 0.0),
    ],
    ids=["cold", "warm", "all_cached", "held_more_than_asked", "empty"],
)
def test_a_quote_counts_what_is_not_cached(
    prompt_tokens: int, warm_tokens: int, uncached_tokens: int, ttft_s: float, price: float
) -> None:
    quoted = a_quote(prompt_tokens, warm_tokens)
    assert quoted.uncached_tokens == uncached_tokens
    assert quoted.ttft_s == pytest.approx(ttft_s)
    assert quoted.price == pytest.approx(price)


def test_queue_and_handoff_come_on_top() -> None:
    alone, busy = a_quote(1000, 900), a_quote(1000, 900, queue_s=0.3, handoff_s=0.05)
    assert busy.ttft_s - alone.ttft_s == pytest.approx(0.4 + 0.05)


def test_without_a_price_there_is_none() -> None:
    quoted = quote(
        prompt_tokens=9, warm_tokens=0, queue_s=0, handoff_s=0, step_time=STEP_TIME, price=None
    )
    assert quoted.price is None


@pytest.mark.parametrize(
    ("queue_s", "told_s"), [(0.0, 0.0), (-1.0, 0.0), (0.001, 0.05), (0.05, 0.05), (0.3, 0.4)]
)
def test_a_queue_is_told_in_coarse_steps(queue_s: float, told_s: float) -> None:
    assert coarse_queue_s(queue_s) == pytest.approx(told_s)


@given(st.floats(min_value=1e-6, max_value=1e4))
def test_a_told_queue_is_never_shorter_and_less_than_twice_as_long(queue_s: float) -> None:
    assert queue_s <= coarse_queue_s(queue_s) < max(2 * queue_s, 0.05 + 1e-9)
