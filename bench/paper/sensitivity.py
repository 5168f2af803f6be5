"""The cells of the sensitivities (`sweeps`), and what they say at each setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bench.paper.experiments import Planned, config_of, hours_and_seeds, setups
from bench.paper.sweeps import SWEEPS, Sweep
from bench.paper.tables import BASE, Ran, against_base, over_runs
from bench.study.compare import BY_KEY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.paper.experiments import Scale
    from bench.sim.hardware import LatencyMode
    from bench.study.approaches import ApproachName
    from bench.study.compare import Estimate, Metric


class Point(NamedTuple):
    sweep: str
    metric: str
    at: float
    approach: str
    ours: Estimate | None


class SweepCell(NamedTuple):
    sweep: Sweep
    at: float
    plan: Planned


def sweep_cells(scale: Scale, latency: LatencyMode) -> list[SweepCell]:
    return [
        SweepCell(sweep, at, Planned(sweep.cluster, pair, one, (BASE, *sweep.approaches)))
        for sweep in SWEEPS
        for at in sweep.values
        for pair in setups()
        for one in hours_and_seeds(
            sweep.change(config_of(sweep.cluster, pair, scale, latency), at), scale.seeds
        )
    ]


def points_of(cells: Sequence[tuple[SweepCell, Ran]]) -> list[Point]:
    by_point: dict[tuple[str, float], list[Ran]] = {}
    sweeps = {sweep.key: sweep for sweep in SWEEPS}
    for cell, ran in cells:
        by_point.setdefault((cell.sweep.key, cell.at), []).append(ran)
    points: list[Point] = []
    for (key, at), rans in by_point.items():
        sweep, metric = sweeps[key], BY_KEY[sweeps[key].metric]
        points += [
            Point(key, sweep.metric, at, str(name), _measured(rans, name, metric))
            for name in sweep.approaches
        ]
    return points


def _measured(rans: Sequence[Ran], name: ApproachName, metric: Metric) -> Estimate | None:
    return over_runs(rans, lambda results: against_base(results, name, metric))
