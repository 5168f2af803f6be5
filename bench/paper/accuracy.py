"""Figure 7: how accurate a router is for what its tokens cost, with and without shadow.

Beside it stand the pair's cheaper and dearer model, each given every call. Scores are those of a
matrix that the user has (LLMRouter's can be had, the paper's cannot); its columns stand in for the
models of a pair, so only pairs with two different stand-ins are shown."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bench.paper.experiments import ClusterKind, config_of, hours_and_seeds
from bench.study.approaches import ApproachName
from bench.study.compare import estimate
from bench.study.prices import dollars_per_token
from bench.study.schema import FixedRouter, MatrixRouter
from bench.study.workload import scored_sessions
from bench.workloads.score_matrix import prices

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.paper.experiments import Pair, Scale
    from bench.sim.hardware import LatencyMode
    from bench.study.compare import Estimate
    from bench.study.records import ApproachResult, CellResult
    from bench.study.schema import SimConfig

BASE, HOST, ORACLE = (
    ApproachName.NO_SHADOW,
    ApproachName.HARVEST_SLO_HOST,
    ApproachName.ORACLE_HOST,
)


class Choice(StrEnum):
    CHEAP = "always the cheaper model"
    DEAR = "always the dearer model"
    ROUTER = "router, no shadow"
    SHADOW = "router, harvest-slo+host"
    ORACLE = "router, oracle+host"


APPROACH_OF = {Choice.ROUTER: BASE, Choice.SHADOW: HOST, Choice.ORACLE: ORACLE}


class AccuracyCell(NamedTuple):
    """One pair, seed and hour: the same sessions with the router, and on either model alone."""

    benchmark: str
    routed: SimConfig
    cheap: SimConfig
    dear: SimConfig

    @property
    def work(self) -> list[tuple[SimConfig, tuple[ApproachName, ...]]]:
        return [(self.routed, (BASE, HOST, ORACLE)), (self.cheap, (BASE,)), (self.dear, (BASE,))]


class Spot(NamedTuple):
    """A point of the figure."""

    benchmark: str
    choice: Choice
    accuracy_pct: Estimate | None
    cost_share: Estimate | None
    """Of what the dearer model costs."""
    switches_pct: Estimate | None
    """Of the calls."""


def accuracy_cells(scale: Scale, latency: LatencyMode, matrix: Path) -> list[AccuracyCell]:
    return [
        _cell(pair, one, matrix)
        for pair in scale.pairs
        if _differ(pair)
        for one in hours_and_seeds(
            config_of(ClusterKind.COLOCATED, pair, scale, latency), scale.seeds
        )
    ]


def spots_of(ran: Sequence[tuple[AccuracyCell, Sequence[CellResult]]]) -> list[Spot]:
    """By benchmark and `Choice`; mean and error over pairs, seeds and hours."""
    spots: list[Spot] = []
    for benchmark in dict.fromkeys(cell.benchmark for cell, _ in ran):
        members = [_measured(cell, results) for cell, results in ran if cell.benchmark == benchmark]
        for choice in Choice:
            points = [points[choice] for points in members]
            spots.append(
                Spot(
                    benchmark,
                    choice,
                    *(estimate([point[at] for point in points]) for at in range(3)),
                )
            )
    return spots


def _differ(pair: Pair) -> bool:
    columns = prices().stand_ins
    return columns[pair.small] != columns[pair.large]


def _cell(pair: Pair, config: SimConfig, matrix: Path) -> AccuracyCell:
    # The dearer of two equal ones is the larger.
    cheap, dear = sorted((pair.small, pair.large), key=dollars_per_token)
    assert config.sessions is not None

    def with_router(router: MatrixRouter | FixedRouter) -> SimConfig:
        assert config.sessions is not None
        return config.model_copy(
            update={"sessions": config.sessions.model_copy(update={"router": router})}
        )

    return AccuracyCell(
        pair.benchmark,
        with_router(MatrixRouter(kind="matrix", path=str(matrix.resolve()))),
        with_router(FixedRouter(kind="fixed", model=cheap)),
        with_router(FixedRouter(kind="fixed", model=dear)),
    )


def _measured(
    cell: AccuracyCell, results: Sequence[CellResult]
) -> dict[Choice, tuple[float, float, float]]:
    """Accuracy in percent, cost as a share, switch calls in percent."""
    routed, cheap, dear = (result.results for result in results)
    dear_dollars = _dollars_per_call(dear[BASE])
    models = list(cell.routed.models)
    alone = {
        Choice.CHEAP: (_model_of(cell.cheap), cheap[BASE]),
        Choice.DEAR: (_model_of(cell.dear), dear[BASE]),
    }
    sessions = scored_sessions(cell.routed)
    scores = np.concatenate([one.scores for one in sessions])
    route = np.concatenate([np.array(one.route) for one in sessions])
    chosen = scores[np.arange(len(route)), route]
    found = {
        choice: (
            100 * float(scores[:, models.index(model)].mean()),
            _dollars_per_call(result) / dear_dollars,
            0.0,
        )
        for choice, (model, result) in alone.items()
    }
    for choice, name in APPROACH_OF.items():
        calls = routed[name].all_calls
        found[choice] = (
            100 * float(chosen.mean()),
            _dollars_per_call(routed[name]) / dear_dollars,
            100 * routed[name].switch_calls.calls / calls.calls,
        )
    return found


def _dollars_per_call(result: ApproachResult) -> float:
    return result.all_calls.cost_dollars / result.all_calls.calls


def _model_of(config: SimConfig) -> str:
    assert config.sessions is not None
    assert isinstance(config.sessions.router, FixedRouter)
    return config.sessions.router.model
