"""The bound of a router without memory."""

from __future__ import annotations

import pytest

from bench.paper.tables import Row
from bench.paper.waste import bound_pct, waste_section
from bench.study.compare import Estimate


@pytest.mark.parametrize(
    ("probability", "calls", "expected"),
    [
        (0.5, 1, 100.0),  # after the last call nothing comes
        (0.5, 2, 75.0),  # the first call's is used in one session of two
        (1.0, 4, 25.0),
        (0.0, 9, 100.0),
    ],
)
def test_bound_is_the_mean_chance_that_no_switch_follows(
    probability: float, calls: int, expected: float
) -> None:
    assert bound_pct(probability, calls) == pytest.approx(expected)
    chances = [(1 - probability) ** left for left in range(calls)]
    assert bound_pct(probability, calls) == pytest.approx(100 * sum(chances) / calls)


def test_page_shows_the_bound_beside_what_was_wasted() -> None:
    row = Row(
        "unused_shadow_pct", "never used", "%", "FusionBench", "colocated", "harvest-slo+host",
        Estimate(32.25, 1.0, 3), None, None,
    )  # fmt: skip
    text = "\n".join(waste_section([row]))
    assert "| FusionBench | 29." in text
    assert "| colocated | harvest-slo+host | 32.2 |" in text
    assert waste_section([]) == []
