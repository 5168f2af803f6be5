"""The demo's route, gaps and growth are what the demo promises, whatever the tools return."""

from __future__ import annotations

import statistics

import pytest

from bench.demo.budget import CUT_LINE, ContextPlan, fit
from bench.demo.script import GAP_MAX_S, LARGE, SMALL, STEPS, draw_gaps, is_switch


def test_the_route_has_enough_calls_and_switches_in_both_directions() -> None:
    switches = [index for index in range(len(STEPS)) if is_switch(STEPS, index)]
    directions = [STEPS[index].model for index in switches]
    assert len(STEPS) >= 10
    assert STEPS[0].model == SMALL
    assert len(switches) >= 5
    assert directions.count(LARGE) >= 2
    assert directions.count(SMALL) >= 2
    assert max(switches) > len(STEPS) - 4, "no switch where the context is long"


def test_gaps_are_drawn_once_and_have_the_promised_median() -> None:
    many = draw_gaps(2001, seed=7)
    assert draw_gaps(2001, seed=7) == many
    assert many[0] == 0.0
    assert statistics.median(many[1:]) == pytest.approx(2.0, rel=0.05)
    assert max(many) <= GAP_MAX_S


@pytest.mark.parametrize("available", [[10_000] * 10, [10_000, 30, 10_000, 20, *[10_000] * 6]])
def test_the_context_reaches_its_target_even_if_some_results_are_short(
    available: list[int],
) -> None:
    plan = ContextPlan(target_tokens=6300, output_tokens=40)
    assert len(available) == len(STEPS) - 1
    weights = [step.weight for step in STEPS[1:]]
    history = 350
    for index, longest in enumerate(available):
        budget = plan.result_tokens(history, weights[index:])
        history += min(budget, longest) + 8 + (40 + 8 if index < len(available) - 1 else 0)
    assert 6100 <= history <= 6350


async def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        ("a b\nc d", 4, "a b\nc d"),
        ("a b\nc d\ne f\ng h", 5, f"a b\nc d\n{CUT_LINE}"),
        ("abcdef ghi jkl", 2, f"ab\n{CUT_LINE}"),
    ],
    ids=["fits", "cut_at_a_line", "one_long_line"],
)
async def test_a_result_is_cut_to_its_budget_and_says_so(
    text: str, limit: int, expected: str
) -> None:
    assert await fit(text, limit, words) == expected


async def test_no_text_is_counted_that_a_window_could_not_hold() -> None:
    counted: list[int] = []

    async def count(text: str) -> int:
        counted.append(len(text))
        return len(text) // 3

    result = await fit("a line of a long listing\n" * 9_000, 100, count)
    assert result.endswith(CUT_LINE)
    assert 200 < len(result) <= 300
    assert max(counted) <= 100 * 16 + len(CUT_LINE) + 1
