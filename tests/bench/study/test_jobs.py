"""Finished cells stay, and nothing of another run is taken for one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from bench.study import jobs
from bench.study.approaches import ApproachName
from bench.study.jobs import Capacity, Folder, Job, capacity_job, cell_job, run_jobs
from bench.study.progress import Progress
from bench.study.schema import (
    DrawnSessions,
    MatrixRouter,
    RunConfig,
    SessionsConfig,
)
from tests.bench.study.builders import a_config

if TYPE_CHECKING:
    from pathlib import Path

BASE = ApproachName.NO_SHADOW


def quiet() -> Progress:
    return Progress(Console(quiet=True), "jobs")


def some_jobs(count: int = 3) -> list[Job[Capacity]]:
    return [capacity_job(a_config(run=RunConfig(seed=seed))) for seed in range(count)]


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    def measure(config: Any) -> float:
        ran.append(config.run.seed)
        if len(ran) == 3:
            raise KeyboardInterrupt
        return float(config.run.seed)

    monkeypatch.setattr(jobs, "measure_capacity", measure)
    with pytest.raises(KeyboardInterrupt):
        run_jobs(some_jobs(), Folder(tmp_path), 1, quiet())
    found = run_jobs(some_jobs(), Folder(tmp_path), 1, quiet())
    assert ran == [0, 1, 2, 2]
    assert [one.rate_per_s for one in found] == [0.0, 1.0, 2.0]


def test_a_part_of_a_file_is_no_finished_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "measure_capacity", lambda _: 1.0)
    folder, job = Folder(tmp_path), some_jobs(1)[0]
    (tmp_path / f".{job.name}.json.1.part").write_text('{"rate_')
    assert folder.read(job) is None
    assert run_jobs([job], folder, 1, quiet()) == [Capacity(rate_per_s=1.0)]


def test_the_name_of_a_cell_holds_everything_that_its_numbers_depend_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = a_config()
    matrix = tmp_path / "scores.csv"
    matrix.write_text("one")
    routed = a_config(
        sessions=SessionsConfig(
            workload=DrawnSessions(benchmark="FusionBench", per_s=0.2),
            router=MatrixRouter(kind="matrix", path=str(matrix)),
        )
    )
    names = {
        cell_job(config, (BASE,), (1.0,)).name,
        cell_job(config, (BASE, ApproachName.ORACLE), (1.0,)).name,
        cell_job(config, (BASE,), (2.0,)).name,
        cell_job(a_config(max_sequences=128), (BASE,), (1.0,)).name,
        cell_job(routed, (BASE,), (1.0,)).name,
        capacity_job(config).name,
    }
    matrix.write_text("two")
    names.add(cell_job(routed, (BASE,), (1.0,)).name)
    monkeypatch.setattr(jobs, "_sources", lambda: "another simulator")
    names.add(cell_job(config, (BASE,), (1.0,)).name)
    assert len(names) == 8
    assert cell_job(config, (BASE,), (1.0,)).name in names


def test_the_same_seed_leaves_the_same_bytes(tmp_path: Path) -> None:
    job = cell_job(a_config(), (BASE,), (8.0, 8.0))
    files = []
    for name in ("first", "second"):
        run_jobs([job], Folder(tmp_path / name), 1, quiet())
        files.append((tmp_path / name / f"{job.name}.json").read_bytes())
    assert files[0] == files[1]


def test_a_capacity_depends_on_its_own_pool_alone() -> None:
    from bench.study.capacities import pools_alone

    first = pools_alone(a_config())
    longer = a_config(run=RunConfig(measured_s=999, seed=5), sessions=None)
    assert [capacity_job(one).name for one in first] == [
        capacity_job(one).name for one in pools_alone(longer)
    ]
