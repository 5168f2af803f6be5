"""When the KV link becomes the limit: calls, normal traffic and the link itself from 10 to 160 GB/s
per GPU, at the same load.

The limit is the lowest bandwidth at which nothing is lost yet against the highest one: calls take
at most 2% longer, and at most half a point fewer normal requests meet their SLOs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from bench.study.approaches import ApproachName
from bench.study.compare import BY_KEY, estimate
from bench.study.jobs import capacities_of, cell_job, key_of, run_jobs
from bench.study.progress import Progress
from bench.study.schema import HourWindow, PoolConfig
from bench.study.several import runs_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from bench.plan.inputs import Question
    from bench.study.compare import Estimate
    from bench.study.jobs import Folder
    from bench.study.records import CellResult

BANDWIDTHS_GB_PER_S = (10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 80.0, 120.0, 160.0)
NAMES = (ApproachName.NO_SHADOW, ApproachName.HARVEST_SLO)
LOST_CALL_PCT = 2.0
LOST_POINTS = 0.5


class LinkPoint(NamedTuple):
    gb_per_s: float
    call_s: dict[str, Estimate]
    attained_pct: dict[str, Estimate]
    busy_pct: dict[str, Estimate]
    """Of the busiest model's decode links, by transfers of requests and calls."""


class LinkPlan(NamedTuple):
    points: tuple[LinkPoint, ...]

    def limit_gb_per_s(self, approach: str) -> float | None:
        """None if nothing was measured; the lowest one tried means that none was a limit."""
        known = [point for point in self.points if approach in point.call_s]
        if not known:
            return None
        best, enough = known[-1], known[-1].gb_per_s
        for point in reversed(known):
            if _loses(point, best, approach):
                break
            enough = point.gb_per_s
        return enough

    def to_json(self) -> dict[str, Any]:
        return {
            "points": [
                {
                    "link_gb_per_s_per_gpu": point.gb_per_s,
                    "llm_call_s": {k: round(v.mean, 4) for k, v in point.call_s.items()},
                    "attained_pct": {k: round(v.mean, 3) for k, v in point.attained_pct.items()},
                    "link_busy_pct": {k: round(v.mean, 2) for k, v in point.busy_pct.items()},
                }
                for point in self.points
            ],
            "enough_gb_per_s_per_gpu": {str(name): self.limit_gb_per_s(name) for name in NAMES},
        }


def _loses(point: LinkPoint, best: LinkPoint, approach: str) -> bool:
    slower = point.call_s[approach].mean > (1 + LOST_CALL_PCT / 100) * best.call_s[approach].mean
    lost = best.attained_pct[approach].mean - point.attained_pct[approach].mean > LOST_POINTS
    return slower or lost


def plan_links(
    question: Question, decode: int, folder: Folder, workers: int, console: Console
) -> LinkPlan:
    """`decode` instances of each model, the others prefill."""
    pools = {
        model: PoolConfig(prefill=question.instances(model) - decode, decode=decode)
        for model in question.models
    }
    configs = {
        gb_per_s: question.config(pools).model_copy(update={"link_gb_per_s_per_gpu": gb_per_s})
        for gb_per_s in BANDWIDTHS_GB_PER_S
    }
    # The load is given; a slow link must not be asked for less.
    fastest = configs[BANDWIDTHS_GB_PER_S[-1]]
    loads = capacities_of([fastest], folder, workers, Progress(console, "capacities"))
    runs = [
        (gb_per_s, run)
        for gb_per_s, config in configs.items()
        for run in runs_of(config, (HourWindow.PEAK,), question.seeds)
    ]
    jobs = [cell_job(run, NAMES, loads[key_of(fastest)]) for _, run in runs]
    results = run_jobs(jobs, folder, workers, Progress(console, "links"))
    by_bandwidth: dict[float, list[CellResult]] = {}
    for (gb_per_s, _), result in zip(runs, results, strict=True):
        by_bandwidth.setdefault(gb_per_s, []).append(result)
    return LinkPlan(tuple(_point(gb_per_s, cells) for gb_per_s, cells in by_bandwidth.items()))


def _point(gb_per_s: float, cells: Sequence[CellResult]) -> LinkPoint:
    def of(metric: str) -> dict[str, Estimate]:
        estimates: dict[str, Estimate] = {}
        for name in map(str, NAMES):
            known = [one.results for one in cells if name in one.results]
            found = estimate([BY_KEY[metric].of(one[name], one[name]) for one in known])
            if found is not None:
                estimates[name] = found
        return estimates

    return LinkPoint(gb_per_s, of("llm_latency_s"), of("slo_attainment_pct"), of("link_busy_pct"))
