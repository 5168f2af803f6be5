"""The best P:D split of each model's GPUs, without shadow and with it.

First every split by itself: how many requests per second meet the SLOs (the paper's rule, appendix
B). Then, with sessions, one model after the other goes through its splits while the others keep
their best one: what a call takes without shadow and with it, at the same normal load. A split that
cannot hold that load is not a choice, however quick its calls are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from bench.study.approaches import ApproachName
from bench.study.compare import BY_KEY, estimate
from bench.study.jobs import capacities_of, cell_job, key_of, run_jobs
from bench.study.progress import Progress
from bench.study.schema import HourWindow
from bench.study.several import runs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from bench.plan.inputs import Question
    from bench.study.compare import Estimate
    from bench.study.jobs import Folder
    from bench.study.records import CellResult
    from bench.study.schema import PoolConfig, SimConfig

WITHOUT, WITH = ApproachName.NO_SHADOW, ApproachName.HARVEST_SLO
LEAST_ATTAINMENT_PCT = 90.0
"""What a capacity is measured at; a split below it does not hold the load."""


class SplitPoint(NamedTuple):
    model: str
    prefill: int
    decode: int
    capacity_per_s: float
    call_s: dict[str, Estimate]
    """By approach; empty without sessions."""
    attained_pct: dict[str, Estimate]

    @property
    def name(self) -> str:
        return f"{self.prefill}P:{self.decode}D"


class SplitPlan(NamedTuple):
    points: tuple[SplitPoint, ...]

    def of(self, model: str) -> tuple[SplitPoint, ...]:
        return tuple(point for point in self.points if point.model == model)

    def best_capacity(self, model: str) -> SplitPoint:
        """Of equal ones the one with fewer prefill instances."""
        return max(self.of(model), key=lambda point: (point.capacity_per_s, -point.prefill))

    def best_calls(self, model: str, approach: str) -> SplitPoint | None:
        """The quickest calls of those that hold the load; None if nothing was measured."""
        holding = [
            point
            for point in self.of(model)
            if approach in point.call_s
            and point.attained_pct[approach].mean >= LEAST_ATTAINMENT_PCT
        ]
        return min(holding, key=lambda point: point.call_s[approach].mean, default=None)

    def to_json(self) -> dict[str, Any]:
        return {
            model: {
                "splits": [
                    {
                        "split": point.name,
                        "capacity_per_s": round(point.capacity_per_s, 3),
                        "llm_call_s": {k: round(v.mean, 4) for k, v in point.call_s.items()},
                        "attained_pct": {
                            k: round(v.mean, 3) for k, v in point.attained_pct.items()
                        },
                    }
                    for point in self.of(model)
                ],
                "best_capacity": self.best_capacity(model).name,
                "best_calls": {
                    str(name): best.name
                    for name in (WITHOUT, WITH)
                    if (best := self.best_calls(model, name)) is not None
                },
            }
            for model in dict.fromkeys(point.model for point in self.points)
        }


def plan_split(question: Question, folder: Folder, workers: int, console: Console) -> SplitPlan:
    capacities = _capacities(question, folder, workers, console)
    best = {
        model: max(by_split, key=lambda pool: (by_split[pool], -pool.prefill))
        for model, by_split in capacities.items()
    }
    cells: dict[tuple[str, PoolConfig], list[CellResult]] = {}
    if len(question.models) > 1:
        cells = _with_sessions(question, capacities, best, folder, workers, console)
    points = tuple(
        _point(model, pool, capacity_per_s, cells.get((model, pool), []))
        for model, by_split in capacities.items()
        for pool, capacity_per_s in by_split.items()
    )
    return SplitPlan(points)


def _capacities(
    question: Question, folder: Folder, workers: int, console: Console
) -> dict[str, dict[PoolConfig, float]]:
    configs = {
        (model, pool): question.config({model: pool})
        for model in question.models
        for pool in question.splits(model)
    }
    found = capacities_of(configs.values(), folder, workers, Progress(console, "capacities"))
    capacities: dict[str, dict[PoolConfig, float]] = {model: {} for model in question.models}
    for (model, pool), config in configs.items():
        capacities[model][pool] = found[key_of(config)][0]
    return capacities


def _with_sessions(
    question: Question,
    capacities: dict[str, dict[PoolConfig, float]],
    best: dict[str, PoolConfig],
    folder: Folder,
    workers: int,
    console: Console,
) -> dict[tuple[str, PoolConfig], list[CellResult]]:
    # The load of every split is that of the best one: it is the traffic that is given, not the
    # split.
    loads = tuple(capacities[model][best[model]] for model in question.models)
    runs: list[tuple[tuple[str, PoolConfig], SimConfig]] = [
        ((model, pool), run)
        for model in question.models
        for pool in question.splits(model)
        for run in runs_of(
            question.config({**best, model: pool}), (HourWindow.PEAK,), question.seeds
        )
    ]
    jobs = [cell_job(run, (WITHOUT, WITH), loads) for _, run in runs]
    results = run_jobs(jobs, folder, workers, Progress(console, "splits"))
    cells: dict[tuple[str, PoolConfig], list[CellResult]] = {}
    for (key, _), result in zip(runs, results, strict=True):
        cells.setdefault(key, []).append(result)
    return cells


def _point(
    model: str, pool: PoolConfig, capacity_per_s: float, cells: Sequence[CellResult]
) -> SplitPoint:
    def of(metric: str) -> dict[str, Estimate]:
        estimates: dict[str, Estimate] = {}
        for name in map(str, (WITHOUT, WITH)):
            known = [one.results for one in cells if name in one.results]
            found = estimate([BY_KEY[metric].of(one[name], one[name]) for one in known])
            if found is not None:
                estimates[name] = found
        return estimates

    return SplitPoint(
        model, pool.prefill, pool.decode, capacity_per_s, of("llm_latency_s"),
        of("slo_attainment_pct"),
    )  # fmt: skip
