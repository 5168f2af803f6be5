"""The capacity of a pool by itself: the rate that its loads are shares of. Measured once per pool
and kept, because it takes longer than a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bench.sim.capacity import ATTAINMENT, attainment_at, find_capacity
from bench.sim.latency import Chunk, Iteration
from bench.study.workload import cluster_of, length_law

if TYPE_CHECKING:
    from bench.sim.cluster import Cluster
    from bench.study.schema import PublishedTraffic, SimConfig, TraceTraffic

MEASURED_REQUESTS = 6000
"""Enough for a share of 90% to be known within half a point."""
LEAST_S, MOST_S = 120.0, 1200.0
BRACKET = 1.35
MAX_STEPS = 24
OF_NO_CAPACITY = ("approach", "shadow", "host_tier", "keeps_finished", "slo_scale")
"""What a capacity must not be measured again for: normal traffic alone is sent, without shadow, and
nobody asks for a finished request's KV; provisioning was done at SLOs as they are."""
TOLERANCE_SHARE = 0.01


def pools_alone(config: SimConfig) -> tuple[SimConfig, ...]:
    """One configuration per pool, with what its capacity depends on and nothing else. Capacity is
    that of the peak hour, whatever window is run."""
    assert config.normal is not None
    return tuple(
        config.model_copy(
            update={
                "models": {model: pool},
                "sessions": None,
                **{name: type(config).model_fields[name].default for name in OF_NO_CAPACITY},
                "run": type(config.run)(),
                "normal": type(config.normal)(traffic=config.normal.traffic),
            }
        )
        for model, pool in config.models.items()
    )


def measure_capacity(config: SimConfig) -> float:
    """Of one pool: normal requests per second at which 90% meet both SLOs."""
    assert config.normal is not None
    cluster, traffic = cluster_of(config), config.normal.traffic
    guess_per_s = _guess_per_s(cluster, traffic)
    duration_s = min(MOST_S, max(LEAST_S, MEASURED_REQUESTS / guess_per_s))
    low, high = _bracket(cluster, traffic, guess_per_s, duration_s)
    return find_capacity(
        cluster,
        length_law(traffic),
        lowest_per_s=low,
        highest_per_s=high,
        duration_s=duration_s,
        seed=config.run.seed,
        tolerance_share=TOLERANCE_SHARE,
    ).rate_per_s


def _bracket(
    cluster: Cluster,
    traffic: PublishedTraffic | TraceTraffic,
    guess_per_s: float,
    duration_s: float,
) -> tuple[float, float]:
    """Two rates, one that is met and one that is not."""
    law, rate_per_s = length_law(traffic), guess_per_s
    met: float | None = None
    missed: float | None = None
    for _ in range(MAX_STEPS):
        if attainment_at(cluster, law, rate_per_s, duration_s, 0) >= ATTAINMENT:
            met, rate_per_s = rate_per_s, rate_per_s * BRACKET
        else:
            missed, rate_per_s = rate_per_s, rate_per_s / BRACKET
        if met is not None and missed is not None:
            return met, missed
    model = cluster.pools[0].latency.model
    raise ValueError(
        f"no capacity of {model} was found between {guess_per_s / BRACKET**MAX_STEPS:.3g} and "
        f"{guess_per_s * BRACKET**MAX_STEPS:.3g} requests per second: its SLOs are met at all of "
        "them or at none"
    )


def _guess_per_s(cluster: Cluster, traffic: PublishedTraffic | TraceTraffic) -> float:
    """What instances could do that prefill all the time: where the search begins."""
    pool = cluster.pools[0]
    lengths = length_law(traffic).draw(1000, np.random.default_rng(0))
    tokens = max(1, int(lengths.input_tokens.mean()))
    one_s = pool.latency.iteration_s(Iteration(chunks=(Chunk(tokens, 0),)))
    return (pool.colocated + pool.prefill) / one_s / 2
