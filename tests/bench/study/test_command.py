"""`shadowprefill sim`: what it prints, where, and with which exit code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from bench.study import jobs
from bench.study.command import app

if TYPE_CHECKING:
    from pathlib import Path

RUNNER = CliRunner()
CONFIG = """
models:
  Qwen2.5-7B: {colocated: 1}
  Llama-3.1-8B: {colocated: 1}
sessions:
  workload: {kind: drawn, benchmark: FusionBench, per_s: 0.2}
run: {warmup_s: 5, measured_s: 15, drain_s: 5}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(jobs, "measure_capacity", lambda _: 8.0)
    path = tmp_path / "tiny.yaml"
    path.write_text(CONFIG)
    return str(path)


def test_a_run_prints_the_same_json_each_time_and_leaves_a_picture(
    tmp_path: Path, config: str
) -> None:
    command = ["run", config, "--json", "--result-dir", str(tmp_path / "out")]
    first, second = RUNNER.invoke(app, command), RUNNER.invoke(app, command)
    assert first.exit_code == second.exit_code == 0, first.output
    assert first.stdout == second.stdout
    document = json.loads(first.stdout)
    assert document["capacities_per_s"] == {"Qwen2.5-7B": 8.0, "Llama-3.1-8B": 8.0}
    assert document["result"]["all_calls"]["calls"] > 0
    assert (tmp_path / "out" / "tiny-no-shadow.png").exists()


def test_a_run_prints_a_table(tmp_path: Path, config: str) -> None:
    result = RUNNER.invoke(app, ["run", config, "--result-dir", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "switch calls" in result.stdout
    assert "normal traffic:" in result.stdout
    assert "power is assumed" in result.stdout


def test_approaches_are_compared_over_seeds_and_hours(tmp_path: Path, config: str) -> None:
    command = ["compare", config, "--approach", "no-shadow", "--seeds", "2", "--window", "peak"]
    result = RUNNER.invoke(app, [*command, "--json", "--result-dir", str(tmp_path)])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["cells"] == 2
    assert document["baseline"] == "no-shadow"
    same = document["approaches"]["no-shadow"]["llm_latency_reduction"]
    assert same == {"mean": 0.0, "standard_error": 0.0, "cells": 2}


def test_a_wrong_file_ends_with_every_error_of_it(tmp_path: Path, config: str) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(CONFIG.replace("FusionBench", "Fusion") + "cores: 3\n")
    result = RUNNER.invoke(app, ["run", str(broken)])
    assert result.exit_code == 1
    assert "cores: unknown key" in result.stderr
    assert "Traceback" not in result.output
