"""Differences of cells whose sums are written down here."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from bench.study.compare import BY_KEY, Estimate, estimate, reduction_of_picked
from tests.bench.study.builders import a_result, some_sums

if TYPE_CHECKING:
    from bench.study.records import ApproachResult


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], None),
        ([None], None),
        ([2.0], Estimate(2.0, None, 1)),
        ([1.0, None, 3.0], Estimate(2.0, 1.0, 2)),  # deviation sqrt(2), over sqrt(2) cells
    ],
    ids=["no_cell", "no_value", "one_cell", "two_cells"],
)
def test_mean_and_standard_error(values: list[float | None], expected: Estimate | None) -> None:
    found = estimate(values)
    if expected is None or found is None:
        assert found is expected
        return
    assert found.mean == expected.mean
    assert found.cells == expected.cells
    assert found.standard_error == pytest.approx(expected.standard_error)


NOW = a_result(
    switches=some_sums(latency_s=15.0, ttft_s=1.0, cached_tokens=900, cost_dollars=0.5),
    every=some_sums(calls=40, latency_s=54.0, cost_dollars=0.75, cached_tokens=800),
    shadow_computed_tokens=400,
    shadow_used_tokens=100,
    prefill_tokens=900,
    energy_j=1100.0,
)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("switch_latency_reduction", 25.0),
        ("switch_ttft_reduction", 80.0),
        ("llm_latency_reduction", 10.0),
        ("token_cost_reduction", 25.0),
        ("switch_cost_reduction", 50.0),
        ("hit_pct", 80.0),
        ("switch_hit_pct", 90.0),
        ("energy_per_good_change", 10.0),
        ("slo_attainment_points", 0.0),
        ("slo_attainment_pct", 95.0),
        ("unused_shadow_pct", 75.0),
        ("prefill_throughput_change", 30.0),
        ("own_prefill_change", -10.0),
        ("switch_latency_s", 1.5),
        ("llm_latency_s", 1.35),
        ("task_s", 10.8),
        ("busy_pct", 50.0),
        ("link_busy_pct", 0.0),
    ],
)
def test_a_metric_by_hand(key: str, expected: float) -> None:
    assert BY_KEY[key].of(NOW, a_result()) == pytest.approx(expected)


def test_nothing_is_said_where_there_was_no_call_or_no_shadow_token() -> None:
    none = a_result(switches=some_sums(calls=0, latency_s=0.0, prompt_tokens=0, cached_tokens=0))
    for key in ("switch_latency_reduction", "switch_hit_pct", "switch_ttft_s"):
        if key != "switch_ttft_s":
            assert BY_KEY[key].of(none, none) is None
    assert BY_KEY["unused_shadow_pct"].of(none, none) is None


def test_picked_calls_of_cells_are_added_before_they_are_compared() -> None:
    cells = [
        {"off": a_result(switches=some_sums(latency_s=before)),
         "on": a_result(switches=some_sums(latency_s=now))}
        for before, now in ((10.0, 5.0), (90.0, 90.0))
    ]  # fmt: skip

    def pick(result: ApproachResult) -> list[object]:
        return [result.switch_calls]

    found = reduction_of_picked(pick, lambda sums: sums.latency_s, cells, "on", "off")
    assert found is not None
    assert math.isclose(found, 5.0)
