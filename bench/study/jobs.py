"""Cells in processes: what is on disk is not run again, and each one is kept as soon as it is done.

A cell's file is named after everything that its numbers depend on: the configuration, the
approaches, the contents of the files it reads, and the sources of the simulator. So nothing of
another run is ever taken for this one, and a killed run goes on where it was."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from bench.study.capacities import measure_capacity, pools_alone
from bench.study.cell import run_cell
from bench.study.records import CellResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bench.study.approaches import ApproachName
    from bench.study.progress import Progress
    from bench.study.schema import SimConfig

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("bench/sim", "bench/workloads", "bench/study", "policy")
Value = TypeVar("Value")


class Capacity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rate_per_s: float


@dataclass(frozen=True, slots=True)
class Job(Generic[Value]):
    """Something to compute, and the name of its file."""

    name: str
    kind: type[Value]
    config: SimConfig
    names: tuple[ApproachName, ...] = ()
    capacities_per_s: tuple[float, ...] = ()

    def run(self) -> Any:
        if not self.names:
            return Capacity(rate_per_s=measure_capacity(self.config))
        return run_cell(self.config, self.names, self.capacities_per_s)

    @property
    def cost(self) -> float:
        """Relative to others of its kind."""
        instances = sum(pool.instances for pool in self.config.models.values())
        return instances * max(1, len(self.names)) * self.config.run.end_s


def capacity_job(pool: SimConfig) -> Job[Capacity]:
    return Job(f"capacity-{_digest('capacity', pool, ())}", Capacity, pool)


def cell_job(
    config: SimConfig, names: Sequence[ApproachName], capacities_per_s: tuple[float, ...]
) -> Job[CellResult]:
    names = tuple(names)
    digest = _digest("cell", config, (*map(str, names), *map(repr, capacities_per_s)))
    return Job(f"cell-{digest}", CellResult, config, names, capacities_per_s)


class Folder:
    """Of finished jobs; a name means that the file is whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir(parents=True, exist_ok=True)

    def read(self, job: Job[Value]) -> Value | None:
        path = self._path / f"{job.name}.json"
        return msgspec.json.decode(path.read_bytes(), type=job.kind) if path.exists() else None

    def keep(self, job: Job[Any], result: Any) -> None:
        write_whole(self._path / f"{job.name}.json", msgspec.json.encode(result, order="sorted"))


def write_whole(path: Path, data: bytes) -> None:
    """A run may be killed at any moment."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(data)
    part.replace(path)


def run_jobs(
    jobs: Sequence[Job[Value]], folder: Folder, workers: int, progress: Progress
) -> list[Value]:
    """Results in the order of the jobs."""
    results: dict[str, Value] = {}
    todo: dict[str, Job[Value]] = {}
    for job in jobs:
        found = folder.read(job)
        if found is None:
            todo[job.name] = job
        else:
            results[job.name] = found
    progress.begin(len({job.name for job in jobs}), [job.cost for job in todo.values()])
    for job, result in _computed(list(todo.values()), workers):
        folder.keep(job, result)
        results[job.name] = result
        progress.done(job.cost)
    progress.end()
    return [results[job.name] for job in jobs]


def capacities_of(
    configs: Iterable[SimConfig], folder: Folder, workers: int, progress: Progress
) -> dict[str, tuple[float, ...]]:
    """By configuration; those without normal traffic need none."""
    configs = list(configs)
    alone = {key_of(one): pools_alone(one) for one in configs if one.normal is not None}
    jobs = {
        capacity_job(pool).name: capacity_job(pool) for pools in alone.values() for pool in pools
    }
    found = run_jobs(list(jobs.values()), folder, workers, progress)
    by_name = {name: one.rate_per_s for name, one in zip(jobs, found, strict=True)}
    return {
        key_of(one): tuple(by_name[capacity_job(pool).name] for pool in alone.get(key_of(one), ()))
        for one in configs
    }


def cells_of(
    work: Sequence[tuple[SimConfig, Sequence[ApproachName]]],
    folder: Folder,
    workers: int,
    progress: Progress,
) -> list[CellResult]:
    """Capacities first, then the cells."""
    capacities = capacities_of([one for one, _ in work], folder, workers, progress)
    jobs = [cell_job(config, names, capacities[key_of(config)]) for config, names in work]
    return run_jobs(jobs, folder, workers, progress)


def _computed(jobs: list[Job[Value]], workers: int) -> Iterator[tuple[Job[Value], Value]]:
    if workers == 1 or len(jobs) < 2:
        for job in jobs:
            yield job, job.run()
        return
    # Spawned: a fork of a process with threads may hang.
    with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=get_context("spawn")) as pool:
        try:
            pending = {pool.submit(job.run): job for job in jobs}
            while pending:
                done, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    yield pending.pop(future), future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def key_of(config: SimConfig) -> str:
    return config.model_dump_json()


def _digest(kind: str, config: SimConfig, more: tuple[str, ...]) -> str:
    digest = hashlib.sha256(f"{kind}\0{_sources()}\0{key_of(config)}\0{more}".encode())
    for path in _files(config):
        digest.update(Path(path).read_bytes())
    return digest.hexdigest()[:20]


def _files(config: SimConfig) -> list[str]:
    named: list[Any] = [config.normal and config.normal.traffic]
    if config.sessions is not None:
        named += [config.sessions.workload, config.sessions.router]
    return [one.path for one in named if hasattr(one, "path")]


@cache
def _sources() -> str:
    """A digest of all that a number may depend on."""
    digest = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".json"):
                digest.update(path.read_bytes())
    return digest.hexdigest()
