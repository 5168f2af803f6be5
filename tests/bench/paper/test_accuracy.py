"""Accuracy against token cost: which cells, what is counted, what the page says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.paper.accuracy import Choice, accuracy_cells, spots_of
from bench.paper.accuracy_figure import by_benchmark, cut_pct, write_accuracy
from bench.paper.experiments import Pair, Scale
from bench.paper.sections import accuracy_section, keep_spots
from bench.sim.hardware import LatencyMode
from bench.study.approaches import ApproachName
from bench.study.load import checks
from bench.study.records import CellResult
from bench.study.workload import scored_sessions
from tests.bench.study.builders import a_result, some_sums

if TYPE_CHECKING:
    from pathlib import Path

    from bench.paper.accuracy import AccuracyCell, Spot

# The large model knows what the small one does not, and costs more.
SCORES = """split,task,query_chars,query_tokens_est,llama-3.1-8b-instruct,llama3-chatqa-1.5-70b
""" + "".join(
    f"train,{task},10,3,{small},{large}\n"
    for task in (
        "agentverse-logicgrid", "agentverse-mgsm", "arc_challenge", "commongen", "commonsense_qa",
        "gpqa", "gsm8k", "human_eval", "math", "mbpp", "mmlu", "natural_qa", "openbook_qa",
        "trivia_qa",
    )
    for small, large in ((1, 0), (0, 1), (0, 0), (1, 1))
)  # fmt: skip
FUSION = Pair("FusionBench", "Llama-3.1-8B", "Llama-3.1-70B")
SAME = Pair("xRouteBench", "Granite-34B-code", "Mixtral-8x7B")
"""Two models that one column stands for."""


def the_cells(folder: Path) -> list[AccuracyCell]:
    path = folder / "scores.csv"
    path.write_text(SCORES)
    scale = Scale(
        name="small", pairs=(FUSION, SAME), seeds=1, measured_s=100, coding_measured_s=100
    )
    return accuracy_cells(scale, LatencyMode.VLLM_TESTBED, path)


def a_cell_of(dollars: dict[ApproachName, float]) -> CellResult:
    results = {
        str(name): a_result(every=some_sums(calls=40, cost_dollars=cost))
        for name, cost in dollars.items()
    }
    return CellResult(results=results, sim_s=1.0, events=1)


def the_spots(folder: Path) -> dict[Choice, Spot]:
    base, host, oracle = (
        ApproachName.NO_SHADOW, ApproachName.HARVEST_SLO_HOST, ApproachName.ORACLE_HOST,
    )  # fmt: skip
    results = [
        a_cell_of({base: 6.0, host: 4.5, oracle: 4.0}), a_cell_of({base: 2.0}),
        a_cell_of({base: 10.0}),
    ]  # fmt: skip
    return by_benchmark(spots_of([(cell, results) for cell in the_cells(folder)]))["FusionBench"]


def test_a_cell_is_a_pair_with_two_stand_ins_and_can_be_simulated(tmp_path: Path) -> None:
    cells = the_cells(tmp_path)
    assert {cell.benchmark for cell in cells} == {"FusionBench"}
    assert len(cells) == 3  # the hours
    for cell in cells:
        assert all(checks(config) == [] for config, _ in cell.work)


def test_accuracy_is_that_of_the_calls_as_they_are_routed(tmp_path: Path) -> None:
    """The router is wrong only where both are: on one query of four."""
    spots = the_spots(tmp_path)
    accuracy = {
        choice: spot.accuracy_pct.mean for choice, spot in spots.items() if spot.accuracy_pct
    }
    assert accuracy[Choice.ROUTER] == accuracy[Choice.SHADOW] == accuracy[Choice.ORACLE]
    assert accuracy[Choice.ROUTER] == pytest.approx(75, abs=8)
    assert accuracy[Choice.CHEAP] == pytest.approx(50, abs=8)
    assert accuracy[Choice.DEAR] == pytest.approx(50, abs=8)


def test_cost_is_a_share_of_the_dearer_model_and_shadow_cuts_it(tmp_path: Path) -> None:
    spots = the_spots(tmp_path)
    shares = {choice: spot.cost_share.mean for choice, spot in spots.items() if spot.cost_share}
    assert shares == pytest.approx(
        {
            Choice.CHEAP: 0.2, Choice.DEAR: 1.0, Choice.ROUTER: 0.6, Choice.SHADOW: 0.45,
            Choice.ORACLE: 0.4,
        }
    )  # fmt: skip
    assert cut_pct(spots) == pytest.approx(25)


def test_scores_belong_to_the_routes_that_are_simulated(tmp_path: Path) -> None:
    for one in scored_sessions(the_cells(tmp_path)[0].routed):
        for model, scores in zip(one.route, one.scores, strict=True):
            assert scores[model] == max(scores)
            assert model == 0 or scores[0] < scores[1]  # of equal ones the cheaper


def test_page_and_picture_say_what_was_kept(tmp_path: Path) -> None:
    assert accuracy_section(tmp_path, "") == []
    spots = list(the_spots(tmp_path).values())
    keep_spots(spots, tmp_path)
    text = "\n".join(accuracy_section(tmp_path, "results/"))
    assert "results/accuracy.png" in text
    assert "| -25.0% | -30% (figure 7b) |" in text
    write_accuracy(spots, "accuracy", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
