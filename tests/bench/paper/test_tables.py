"""Rows, verdicts and the page, from cells that are written down here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from matplotlib.figure import Figure

from bench.paper.experiments import CODING, ClusterKind, Pair, Planned, quick_scale
from bench.paper.figures import Bar, cut, write_ladder, write_origins, write_overheads
from bench.paper.page import Verdict, page, verdict_of
from bench.paper.published import published
from bench.paper.reasons import UNKNOWN, Reason
from bench.paper.tables import Ran, Row, over_runs, rows_of
from bench.study.approaches import ApproachName
from bench.study.compare import Estimate
from bench.study.records import ApproachResult, CellResult
from bench.study.schema import HourWindow, NormalConfig, RunConfig
from tests.bench.study.builders import a_config, a_result, some_sums

if TYPE_CHECKING:
    from pathlib import Path

BASE, HOST = ApproachName.NO_SHADOW, ApproachName.HARVEST_SLO_HOST
FUSION, COPILOT = Pair("FusionBench", "Qwen2.5-7B", "Llama-3.1-8B"), Pair(CODING, "a", "b")


def a_cell(
    pair: Pair, latencies_s: dict[ApproachName, float], seed: int = 0,
    window: HourWindow = HourWindow.PEAK, cluster: ClusterKind = ClusterKind.COLOCATED,
) -> Ran:  # fmt: skip
    config = a_config(normal=NormalConfig(window=window), run=RunConfig(seed=seed))
    results = {
        str(name): a_result(switches=some_sums(latency_s=at)) for name, at in latencies_s.items()
    }
    cell = CellResult(results=results, sim_s=1.0, events=1)
    return Ran(Planned(cluster, pair, config, tuple(latencies_s)), cell)


def the_row(rows: list[Row], metric: str, group: str, approach: str = HOST) -> Row:
    return next(
        row for row in rows
        if (row.metric, row.group, row.approach, row.cluster)
        == (metric, group, approach, "colocated")
    )  # fmt: skip


def test_pairs_are_averaged_in_a_run_and_runs_give_the_error() -> None:
    cells = [
        a_cell(FUSION, {BASE: 100.0, HOST: 90.0}, seed=0),
        a_cell(FUSION._replace(small="x"), {BASE: 100.0, HOST: 70.0}, seed=0),
        a_cell(FUSION, {BASE: 100.0, HOST: 80.0}, seed=1),
        a_cell(FUSION._replace(small="x"), {BASE: 100.0, HOST: 80.0}, seed=1),
        a_cell(COPILOT, {BASE: 100.0, HOST: 50.0}, seed=0),
    ]
    row = the_row(rows_of(cells), "switch_latency_reduction", "benchmarks")
    assert row.ours == Estimate(pytest.approx(20.0), pytest.approx(0.0), 2)
    assert row.paper == 10.4
    assert row.difference == pytest.approx(9.6)
    coding = the_row(rows_of(cells), "switch_latency_reduction", "coding")
    assert coding.ours == Estimate(pytest.approx(50.0), None, 1)


def test_hours_and_seeds_are_runs_of_their_own() -> None:
    cells = [
        a_cell(FUSION, {BASE: 100.0, HOST: 90.0}, seed=seed, window=window)
        for seed in range(2)
        for window in HourWindow
    ]

    def one(results: dict[str, ApproachResult]) -> float:
        return 1.0

    found = over_runs(cells, one)
    assert found is not None
    assert found.cells == 6


def test_every_number_of_the_paper_has_a_row_even_if_nothing_was_simulated() -> None:
    rows = rows_of([a_cell(FUSION, {BASE: 100.0})])
    told = [row for row in rows if row.paper is not None]
    assert len(told) == len(published().values)
    row = the_row(rows, "switch_latency_reduction", "benchmarks")
    assert row.ours is None
    assert verdict_of(row) is Verdict.NOT_SIMULATED
    assert the_row(rows, "hit_pct", "FusionBench", BASE).ours is not None


def test_the_share_of_the_oracle_is_that_of_the_means() -> None:
    cells = [a_cell(FUSION, {BASE: 100.0, HOST: 90.0, ApproachName.ORACLE: 80.0})]
    row = the_row(rows_of(cells), "oracle_share_switch", "benchmarks")
    assert row.ours is not None
    assert row.ours.mean == pytest.approx(50.0)


def a_row(
    ours: float | None, paper: float | None, error: float | None = None, unit: str = "%"
) -> Row:
    estimate = None if ours is None else Estimate(ours, error, 3)
    return Row("hit_pct", "hit rate", unit, "all", "colocated", HOST, estimate, paper, "table 1")


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (a_row(10.0, 10.4), Verdict.AGREES),
        (a_row(8.0, 10.4), Verdict.AGREES),  # within a quarter
        (a_row(7.0, 10.4), Verdict.LOWER),
        (a_row(7.0, 10.4, error=2.0), Verdict.UNSURE),  # within two standard errors
        (a_row(72.5, 75.0, unit="% of tokens"), Verdict.AGREES),
        (a_row(68.0, 75.0, unit="% of tokens"), Verdict.LOWER),  # a quarter would be anything
        (a_row(14.0, 10.4), Verdict.HIGHER),
        (a_row(1.2, 0.4), Verdict.AGREES),  # within one point
        (a_row(1.2, 0.4, unit="s"), Verdict.HIGHER),  # of a percentage only
        (a_row(None, 0.4), Verdict.NOT_SIMULATED),
    ],
)
def test_when_a_number_agrees(row: Row, verdict: Verdict) -> None:
    assert verdict_of(row) is verdict


def test_the_page_names_what_is_missing_and_what_does_not_agree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bench.paper.reasons.REASONS", ())
    text = page(
        [a_row(20.0, 10.0, 0.5), a_row(None, 5.0)],
        ["About."],
        {"ladder.png": "The ladder"},
    )
    assert "2 numbers: 0 agrees, 1 ours is higher, 0 ours is lower, 0 too uncertain" in text
    assert "20.0 ± 0.5" in text
    assert f"- {UNKNOWN} (hit rate, all, colocated, {HOST}: 20.0 ± 0.5 against 10.)" in text
    assert "![The ladder](ladder.png)" in text
    assert text.endswith("\n")


def test_a_reason_holds_for_the_rows_that_it_names() -> None:
    row = a_row(1.0, 2.0)
    assert Reason("why").holds_for(row)
    assert Reason("why", metric="hit_pct", group="all").holds_for(row)
    assert not Reason("why", metric="hit_pct", group="coding").holds_for(row)


def test_pictures_are_drawn_of_rows_with_holes(tmp_path: Path) -> None:
    rows = rows_of([a_cell(FUSION, {BASE: 100.0, HOST: 90.0}), a_cell(COPILOT, {BASE: 9.0})])
    write_ladder(rows, ClusterKind.COLOCATED, "ladder", tmp_path / "a.png")
    write_overheads(rows, "overheads", tmp_path / "b.png")
    write_origins(rows, "origins", tmp_path / "c.png")
    nothing = rows_of([a_cell(FUSION, {BASE: 1.0})])
    write_ladder(nothing, ClusterKind.PD, "nothing", tmp_path / "d.png")
    for name in "abcd":
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_bar_that_the_paper_leaves_out_does_not_set_the_scale() -> None:
    eager, harvest = ApproachName.EAGER, ApproachName.HARVEST
    panel = Figure().subplots()
    bars = [Bar(harvest, 0.0, -5.0, -8.0, 6.0), Bar(eager, 1.0, -80.0, -99.0, -60.0), None]
    cut(panel, bars)
    low, high = panel.get_ylim()
    assert -10 < low < -8
    assert 6 < high < 8
    assert [text.get_text().strip() for text in panel.texts] == ["-80"]


def test_the_quick_study_has_one_pair_of_each_trace() -> None:
    assert len({pair.benchmark for pair in quick_scale().pairs}) == len(quick_scale().pairs) == 4
