"""Which cells the paper's main study is made of: pairs, seeds, hours, clusters, approaches.

The router is a two-state Markov chain at the rates of Table 1: the matrices of Table 3 cannot be
had. The split of a disaggregated pool is three prefill instances and one decode instance, the
paper's own for nearly all models (appendix B)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from bench.paper.published import pairs
from bench.sim.approach import Predicts
from bench.study.approaches import ApproachName
from bench.study.schema import (
    DrawnSessions,
    HourWindow,
    NormalConfig,
    PoolConfig,
    RunConfig,
    SessionsConfig,
    ShadowConfig,
    SimConfig,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bench.sim.hardware import LatencyMode

INSTANCES = 4
CODING = "GHCP-coding"


class ClusterKind(StrEnum):
    COLOCATED = "colocated"
    PD = "pd"


APPROACHES: Mapping[ClusterKind, tuple[ApproachName, ...]] = {
    ClusterKind.COLOCATED: tuple(ApproachName),
    ClusterKind.PD: (
        ApproachName.NO_SHADOW,
        ApproachName.HARVEST_SLO,
        ApproachName.HARVEST_SLO_HOST,
        ApproachName.ORACLE,
        ApproachName.ORACLE_HOST,
    ),
}
_POOLS = {
    ClusterKind.COLOCATED: PoolConfig(colocated=INSTANCES),
    ClusterKind.PD: PoolConfig(prefill=INSTANCES - 1, decode=1),
}


class Pair(NamedTuple):
    benchmark: str
    small: str
    large: str

    @property
    def label(self) -> str:
        return f"{self.small} / {self.large}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of the study is run."""

    name: str
    pairs: tuple[Pair, ...]
    seeds: int
    measured_s: float
    coding_measured_s: float


class Planned(NamedTuple):
    cluster: ClusterKind
    pair: Pair
    config: SimConfig
    approaches: tuple[ApproachName, ...]


def full_scale() -> Scale:
    """Section 5.1: 22 pairs, 3 seeds and 3 hours, 600 s (coding 1,800 s)."""
    every = tuple(
        Pair(benchmark, *pair) for benchmark, listed in pairs().pairs.items() for pair in listed
    )
    return Scale(name="full", pairs=every, seeds=3, measured_s=600, coding_measured_s=1800)


def quick_scale() -> Scale:
    return Scale(name="quick", pairs=setups(), seeds=1, measured_s=300, coding_measured_s=600)


def setups() -> tuple[Pair, ...]:
    return tuple(Pair(benchmark, *pair) for benchmark, pair in pairs().setups.items())


def planned(scale: Scale, latency: LatencyMode) -> Iterator[Planned]:
    for cluster in ClusterKind:
        for pair in scale.pairs:
            base = config_of(cluster, pair, scale, latency)
            for config in hours_and_seeds(base, scale.seeds):
                yield Planned(cluster, pair, config, APPROACHES[cluster])


def config_of(cluster: ClusterKind, pair: Pair, scale: Scale, latency: LatencyMode) -> SimConfig:
    coding = pair.benchmark == CODING
    pool = _POOLS[cluster]
    per_s = pairs().sessions_per_s[pair.benchmark]
    return SimConfig(
        latency=latency,
        models={pair.small: pool, pair.large: pool},
        normal=NormalConfig(),
        # Line 10 of Algorithm 1 as it is written: with the context foreseen no chunk of 256 tokens
        # fits behind a long one, and no reading of the rest gives the paper's ladder (`readings`).
        shadow=ShadowConfig(predicts=Predicts.TOKENS),
        sessions=SessionsConfig(
            workload=DrawnSessions(benchmark=pair.benchmark, per_s=per_s),
        ),
        run=RunConfig(measured_s=scale.coding_measured_s if coding else scale.measured_s),
    )


def hours_and_seeds(base: SimConfig, seeds: int) -> list[SimConfig]:
    assert base.normal is not None
    return [
        base.model_copy(
            update={
                "normal": base.normal.model_copy(update={"window": window}),
                "run": base.run.model_copy(update={"seed": seed}),
            }
        )
        for window in HourWindow
        for seed in range(seeds)
    ]
