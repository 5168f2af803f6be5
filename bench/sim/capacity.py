"""The capacity of a cluster: the highest rate of normal traffic at which 90% of the requests meet
both SLOs (paper, section 5.1 and appendix D.1). Loads are given as shares of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.sim.build import Workload
from bench.sim.compiled import HAS_NUMBA
from bench.sim.simulation import Simulation
from bench.sim.slos import ttft_slos_s
from bench.workloads.traffic import drawn_traffic

if TYPE_CHECKING:
    from bench.sim.cluster import Cluster
    from bench.sim.latency import LatencyModel
    from bench.sim.outcome import Outcome
    from bench.workloads.traffic import LengthLaw

ATTAINMENT = 0.9
WARMUP_S = 120.0
"""What the paper leaves out at the start of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    rate_per_s: float
    attainment: float
    """At this rate."""


def meets_slos(outcome: Outcome, latency: LatencyModel) -> np.ndarray:
    """Per request. One with a single token has no TPOT to miss."""
    ttft_slo_s = ttft_slos_s(latency, outcome.prompt_tokens)
    return (outcome.ttft_s <= ttft_slo_s) & (outcome.tpot_s <= latency.tpot_slo_s())


def attainment_at(
    cluster: Cluster,
    law: LengthLaw,
    rate_per_s: float,
    duration_s: float,
    seed: int,
    *,
    with_numba: bool = HAS_NUMBA,
) -> float:
    """Share of the requests after the warm-up that meet both SLOs; those that are not finished when
    the traffic ends go on until they are."""
    traffic = drawn_traffic(law, rate_per_s, WARMUP_S + duration_s, np.random.default_rng(seed))
    simulation = Simulation(cluster, Workload(normal=(traffic,)), with_numba=with_numba)
    outcome = simulation.run()
    measured = outcome.arrival_s >= WARMUP_S
    return float(meets_slos(outcome, cluster.pools[0].latency)[measured].mean())


def find_capacity(
    cluster: Cluster,
    law: LengthLaw,
    *,
    lowest_per_s: float,
    highest_per_s: float,
    duration_s: float = 600.0,
    seed: int = 0,
    tolerance_share: float = 0.005,
    with_numba: bool = HAS_NUMBA,
) -> Capacity:
    """By halving, between a rate that is met and one that is not; of a cluster with one pool.

    The seed is the same at every rate, so that the attainment falls with the rate and not by
    chance."""
    if len(cluster.pools) != 1:
        raise ValueError(f"capacity is measured pool by pool, got {len(cluster.pools)} pools")
    if not 0 < lowest_per_s < highest_per_s:
        raise ValueError(f"rates must be 0 < lowest < highest, got {lowest_per_s}, {highest_per_s}")

    def attained(rate_per_s: float) -> float:
        return attainment_at(cluster, law, rate_per_s, duration_s, seed, with_numba=with_numba)

    low, high, share = lowest_per_s, highest_per_s, attained(lowest_per_s)
    if share < ATTAINMENT or attained(highest_per_s) >= ATTAINMENT:
        raise ValueError(f"capacity does not lie between {lowest_per_s} and {highest_per_s} per s")
    while high / low > 1 + tolerance_share:
        middle = (low + high) / 2
        found = attained(middle)
        if found >= ATTAINMENT:
            low, share = middle, found
        else:
            high = middle
    return Capacity(rate_per_s=low, attainment=share)
