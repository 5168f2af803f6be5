"""What the ladder depends on: one thing changes from row to row, and the page shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.paper.experiments import ClusterKind, config_of, quick_scale
from bench.paper.readings import READINGS, SHOWN, reading_cells, reading_rows
from bench.paper.sections import keep_readings, readings_section
from bench.paper.tables import BASE, Ran
from bench.sim.approach import Approach, Evicts, Predicts
from bench.sim.hardware import LatencyMode
from bench.study.load import checks
from bench.study.records import CellResult
from bench.study.schema import HourWindow
from tests.bench.study.builders import a_result, some_sums

if TYPE_CHECKING:
    from pathlib import Path

LATENCY = LatencyMode.VLLM_TESTBED


def test_the_first_reading_is_what_the_engines_do_and_the_second_the_study() -> None:
    pair = quick_scale().pairs[0]
    study = config_of(ClusterKind.COLOCATED, pair, quick_scale(), LATENCY)
    engines = READINGS[0].of(study)
    assert engines.keeps_finished
    assert engines.shadow.predicts is Approach().predicts is Predicts.CONTEXT
    assert engines.shadow.evicts is Approach().evicts is Evicts.SHADOW_FIRST
    second = READINGS[1].of(study)
    assert second.keeps_finished is study.keeps_finished
    assert second.shadow.predicts is study.shadow.predicts is Predicts.TOKENS


def test_every_reading_is_another_configuration_of_the_same_arrivals() -> None:
    cells = reading_cells(quick_scale(), LATENCY)
    assert len(cells) == len(READINGS) * 4
    assert len({cell.plan.config.model_dump_json() for cell in cells}) == len(cells)
    for cell in cells:
        assert checks(cell.plan.config) == []
        assert cell.plan.config.normal is not None
        assert cell.plan.config.normal.window is HourWindow.MEDIAN


def test_rows_are_the_mean_of_the_setups_and_come_back_from_the_file(tmp_path: Path) -> None:
    cells = reading_cells(quick_scale(), LATENCY)
    ran = []
    for number, cell in enumerate(cells):
        now = a_result(switches=some_sums(latency_s=20.0 - number % 4))
        results = {str(BASE): a_result(), **{str(name): now for name in SHOWN}}
        ran.append((cell, Ran(cell.plan, CellResult(results=results, sim_s=1.0, events=1))))
    rows = reading_rows(ran)
    assert len(rows) == len(READINGS) * len(SHOWN)
    assert rows[0].values[0] is not None
    assert rows[0].values[0].mean == pytest.approx(7.5)  # 0, 5, 10 and 15%
    assert readings_section(tmp_path) == []
    keep_readings(rows, tmp_path)
    text = "\n".join(readings_section(tmp_path))
    assert f"| as the engines | {SHOWN[0]} | 7.50 | " in text
