"""Retries are a share of the calls, and a few at once."""

from __future__ import annotations

from policy.retry_budget import RESERVE, RETRIES_PER_CALL, RetryBudget


def test_the_reserve_can_be_used_at_once_and_no_more() -> None:
    budget = RetryBudget()
    assert sum(budget.take() for _ in range(100)) == RESERVE


def test_calls_fill_it_again_up_to_the_reserve() -> None:
    budget = RetryBudget()
    while budget.take():
        pass
    for _ in range(50):
        budget.call_came()
    assert sum(budget.take() for _ in range(100)) == 50 * RETRIES_PER_CALL
    for _ in range(10_000):
        budget.call_came()
    assert sum(budget.take() for _ in range(100)) == RESERVE
