"""The best split and the limit of a link, from curves that are written down here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.plan.links import LinkPlan, LinkPoint
from bench.plan.pictures import write_links, write_split
from bench.plan.split import WITH, WITHOUT, SplitPlan, SplitPoint
from bench.study.compare import Estimate

if TYPE_CHECKING:
    from pathlib import Path

OFF, ON = str(WITHOUT), str(WITH)


def sure(value: float) -> Estimate:
    return Estimate(value, None, 1)


def a_split(
    prefill: int, capacity_per_s: float, off_s: float, on_s: float, attained_pct: float = 99.0
) -> SplitPoint:
    return SplitPoint(
        "m", prefill, 4 - prefill, capacity_per_s,
        {OFF: sure(off_s), ON: sure(on_s)},
        {OFF: sure(attained_pct), ON: sure(attained_pct)},
    )  # fmt: skip


SPLITS = SplitPlan(
    (
        a_split(1, 5.0, 1.0, 0.9, attained_pct=60.0),  # quick, but it drops normal requests
        a_split(2, 20.0, 3.0, 2.0),
        a_split(3, 20.0, 2.5, 2.2),
    ),
)


def test_capacity_decides_without_sessions_and_fewer_prefill_instances_win_a_tie() -> None:
    assert SPLITS.best_capacity("m").name == "2P:2D"


def test_the_quickest_calls_of_a_split_that_holds_the_load_win() -> None:
    for approach, name in ((OFF, "3P:1D"), (ON, "2P:2D")):
        best = SPLITS.best_calls("m", approach)
        assert best is not None
        assert best.name == name
    assert SPLITS.best_calls("m", "oracle") is None
    assert SPLITS.to_json()["m"]["best_calls"] == {OFF: "3P:1D", ON: "2P:2D"}


def a_link(gb_per_s: float, call_s: float, attained_pct: float = 99.0) -> LinkPoint:
    return LinkPoint(
        gb_per_s, {OFF: sure(call_s)}, {OFF: sure(attained_pct)}, {OFF: sure(10.0)}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("points", "enough"),
    [
        ([a_link(10, 2.0), a_link(20, 1.05), a_link(40, 1.01), a_link(80, 1.0)], 40),
        ([a_link(10, 1.0), a_link(20, 1.0)], 10),
        ([a_link(10, 1.0, attained_pct=95.0), a_link(20, 1.0)], 20),
        # A dip below a bandwidth that loses is chance, and not enough.
        ([a_link(10, 1.0), a_link(20, 1.5), a_link(40, 1.0)], 40),
    ],
    ids=["calls", "never", "normal_requests", "not_beyond_a_loss"],
)
def test_the_lowest_bandwidth_that_loses_nothing_is_enough(
    points: list[LinkPoint], enough: float
) -> None:
    plan = LinkPlan(tuple(points))
    assert plan.limit_gb_per_s(OFF) == enough
    assert plan.limit_gb_per_s(ON) is None
    assert plan.to_json()["enough_gb_per_s_per_gpu"] == {OFF: enough, ON: None}


def test_pictures_are_drawn(tmp_path: Path) -> None:
    write_split(SPLITS, "splits", tmp_path / "split.png")
    write_split(SplitPlan((SplitPoint("m", 1, 1, 4.0, {}, {}),)), "alone", tmp_path / "alone.png")
    write_links(LinkPlan((a_link(10, 2.0), a_link(20, 1.0))), "links", tmp_path / "links.png")
    for name in ("split", "alone", "links"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
