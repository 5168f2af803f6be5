"""Ours beside the paper's: one row per metric, group of pairs, cluster and approach.

A group's value in one run (seed and hour) is the mean over its pairs; mean and standard error are
taken over the runs, as the paper's error bars are. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from bench.paper.experiments import CODING, ClusterKind
from bench.paper.published import published
from bench.sim.hardware import architecture
from bench.study.approaches import ApproachName
from bench.study.compare import BY_KEY, METRICS, Metric, estimate, reduction_of_picked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bench.paper.experiments import Pair, Planned
    from bench.paper.published import PublishedValue
    from bench.study.compare import Estimate
    from bench.study.records import ApproachResult, CellResult, Sums

BASE = ApproachName.NO_SHADOW
ALL, BENCHMARKS, CODING_GROUP = "all", "benchmarks", "coding"
SIZE_BINS = (
    ("target below 15B", 0, 15),
    ("target 15 to 50B", 15, 50),
    ("target above 50B", 50, 1e9),
)
CONTEXT_BINS = (
    ("context below 2K", 0, 2048), ("context 2K to 4K", 2048, 4096),
    ("context 4K to 8K", 4096, 8192), ("context 8K to 16K", 8192, 16_384),
    ("context 16K to 32K", 16_384, 32_768), ("context 32K to 64K", 32_768, 65_536),
    ("context from 64K", 65_536, 10**9),
)  # fmt: skip
ORACLE_OF = {BENCHMARKS: ApproachName.ORACLE, CODING_GROUP: ApproachName.ORACLE_HOST}
"""What the paper takes the share of (section 5.2)."""


class Ran(NamedTuple):
    """A cell of the study and what came out."""

    plan: Planned
    result: CellResult


class Row(NamedTuple):
    metric: str
    label: str
    unit: str
    group: str
    cluster: str
    approach: str
    ours: Estimate | None
    paper: float | None
    source: str | None

    @property
    def difference(self) -> float | None:
        if self.ours is None or self.paper is None:
            return None
        return self.ours.mean - self.paper

    def to_json(self) -> dict[str, Any]:
        ours, difference = self.ours, self.difference
        error = None if ours is None else ours.standard_error
        return {
            "metric": self.metric,
            "label": self.label,
            "unit": self.unit,
            "group": self.group,
            "cluster": self.cluster,
            "approach": self.approach,
            "ours": None if ours is None else round(ours.mean, 3),
            "standard_error": None if error is None else round(error, 3),
            "runs": 0 if ours is None else ours.cells,
            "paper": self.paper,
            "difference": None if difference is None else round(difference, 3),
            "source": self.source,
        }


def groups_of(pair: Pair) -> tuple[str, ...]:
    """A pair's own benchmark, and the groups that the paper's text speaks of."""
    return (ALL, CODING_GROUP if pair.benchmark == CODING else BENCHMARKS, pair.benchmark)


def rows_of(cells: Sequence[Ran]) -> list[Row]:
    """First those that the paper has a number for, in its order, then the others."""
    found = {row[:1] + row[3:6]: row for row in _all_rows(cells)}
    rows: list[Row] = []
    for value in published().values:
        key = (value.metric, value.group, value.cluster, value.approach)
        row = found.pop(key, None) or _missing(value)
        rows.append(row._replace(paper=value.value, source=value.source))
    return [*rows, *found.values()]


def _missing(value: PublishedValue) -> Row:
    metric = BY_KEY.get(value.metric) or EXTRA.get(value.metric)
    label, unit = (value.metric, "") if metric is None else (metric.label, metric.unit)
    return Row(
        value.metric, label, unit, value.group, value.cluster, value.approach, None, None, None
    )


def _all_rows(cells: Sequence[Ran]) -> list[Row]:
    rows: list[Row] = []
    for cluster in ClusterKind:
        mine = [cell for cell in cells if cell.plan.cluster is cluster]
        names = list(dict.fromkeys(name for cell in mine for name in cell.result.results))
        for group in dict.fromkeys(group for cell in mine for group in groups_of(cell.plan.pair)):
            members = [cell for cell in mine if group in groups_of(cell.plan.pair)]
            for name in names:
                rows += [
                    _row(metric, group, cluster, name, members)
                    for metric in (*METRICS, *EXTRA.values())
                ]
                rows += _oracle_rows(group, cluster, name, members)
        for name in names:
            rows += _binned_rows(cluster, name, mine)
    return [row for row in rows if row.ours is not None]


def _row(metric: Metric, group: str, cluster: str, name: str, cells: Sequence[Ran]) -> Row:
    ours = over_runs(cells, lambda results: against_base(results, name, metric))
    return Row(metric.key, metric.label, metric.unit, group, cluster, name, ours, None, None)


def against_base(results: Mapping[str, ApproachResult], name: str, metric: Metric) -> float | None:
    return metric.of(results[name], results[BASE]) if name in results and BASE in results else None


def over_runs(
    cells: Sequence[Ran], of: Callable[[Mapping[str, ApproachResult]], float | None]
) -> Estimate | None:
    by_run: dict[tuple[str, int], list[float]] = {}
    for cell in cells:
        value = of(cell.result.results)
        if value is not None:
            by_run.setdefault(run_of(cell), []).append(value)
    return estimate([sum(values) / len(values) for values in by_run.values()])


def run_of(cell: Ran) -> tuple[str, int]:
    config = cell.plan.config
    assert config.normal is not None
    return str(config.normal.window), config.run.seed


def _oracle_rows(group: str, cluster: str, name: str, cells: Sequence[Ran]) -> list[Row]:
    """The share of the oracle's gain: of the means, because a single run's may be near zero."""
    oracle = ORACLE_OF.get(group)
    if oracle is None or name in (BASE, oracle):
        return []
    rows = []
    for key, label, metric in (
        ("oracle_share_switch", "share of the oracle's gain, switch-call latency",
         BY_KEY["switch_latency_reduction"]),
        ("oracle_share_llm", "share of the oracle's gain, LLM-call latency",
         BY_KEY["llm_latency_reduction"]),
    ):  # fmt: skip
        mine = _row(metric, group, cluster, name, cells).ours
        best = _row(metric, group, cluster, oracle, cells).ours
        if mine is None or best is None or best.mean <= 0:
            continue
        share = estimate([100 * mine.mean / best.mean])
        rows.append(Row(key, label, "%", group, cluster, name, share, None, None))
    return rows


def _binned_rows(cluster: str, name: str, cells: Sequence[Ran]) -> list[Row]:
    """Figure 9a to 9c: calls of all pairs together, because a bin of one pair has few of them."""
    rows = []
    for key, value in (
        ("switch_latency_reduction", lambda sums: sums.latency_s),
        ("switch_cost_reduction", lambda sums: sums.cost_dollars),
    ):
        metric = BY_KEY[key]
        for group, pick in (*_size_picks(), *_context_picks()):
            ours = estimate(
                [
                    reduction_of_picked(
                        pick, value, [cell.result.results for cell in run], name, BASE
                    )
                    for run in _runs(cells)
                ]
            )
            rows.append(Row(key, metric.label, metric.unit, group, cluster, name, ours, None, None))
    return rows


def _runs(cells: Sequence[Ran]) -> list[list[Ran]]:
    by_run: dict[tuple[str, int], list[Ran]] = {}
    for cell in cells:
        by_run.setdefault(run_of(cell), []).append(cell)
    return list(by_run.values())


def _size_picks() -> list[tuple[str, Callable[[ApproachResult], list[Sums]]]]:
    def pick(least: float, most: float) -> Callable[[ApproachResult], list[Sums]]:
        return lambda result: [
            sums
            for model, sums in result.switch_calls_by_model.items()
            if least <= architecture(model).total_params_billion < most
        ]

    return [(group, pick(least, most)) for group, least, most in SIZE_BINS]


def _context_picks() -> list[tuple[str, Callable[[ApproachResult], list[Sums]]]]:
    def pick(least: float, most: float) -> Callable[[ApproachResult], list[Sums]]:
        return lambda result: [
            sums
            for start, sums in result.switch_calls_by_context.items()
            if least <= int(start) < most
        ]

    return [(group, pick(least, most)) for group, least, most in CONTEXT_BINS]


def _slowdown(now: ApproachResult, _: ApproachResult) -> float | None:
    """A switch call's mean latency over that of the other calls."""
    switches, every = now.switch_calls, now.all_calls
    others = every.calls - switches.calls
    if not switches.calls or not others:
        return None
    stayed_s = (every.latency_s - switches.latency_s) / others
    return switches.latency_s / switches.calls / stayed_s


EXTRA = {
    "switch_slowdown": Metric(
        "switch_slowdown", "switch call / other calls, latency", "x", _slowdown
    )
}
