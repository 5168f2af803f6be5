"""Small clusters, sessions and traffic, and a run of them that checks what must hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bench.sim.approach import NO_SHADOW, Approach
from bench.sim.build import RoutedWork, Workload
from bench.sim.cluster import Cluster, ModelPool
from bench.sim.conservation import check
from bench.sim.latency import Chunk, Iteration, LatencyModel
from bench.sim.simulation import Simulation
from bench.workloads.sessions import RoutedSession, SessionCall
from bench.workloads.trace import Trace

if TYPE_CHECKING:
    from bench.sim.outcome import Outcome

LLAMA, GEMMA = LatencyModel("Llama-3.1-8B"), LatencyModel("Gemma-7B")
"""Gemma's KV pool holds 124,761 tokens: small enough to fill."""


def requests(*rows: tuple[float, int, int]) -> Trace:
    """Of (arrival, prompt, output)."""
    arrival_s, prompt, output = zip(*rows, strict=True)
    return Trace(
        name="requests",
        arrival_s=np.array(arrival_s, dtype=float),
        input_tokens=np.array(prompt),
        output_tokens=np.array(output),
    )


def a_session(*calls: tuple[int, int, int, float], arrival_s: float = 0.0) -> RoutedSession:
    """Of (kept, new, output, gap)."""
    return RoutedSession(
        session_id="s",
        kind="k",
        task="t",
        arrival_s=arrival_s,
        calls=tuple(SessionCall(*c) for c in calls),
    )


def colocated(*latencies: LatencyModel, instances: int = 1, **limits: int) -> Cluster:
    return Cluster(
        pools=tuple(ModelPool(latency=one, colocated=instances) for one in latencies), **limits
    )


def split(*latencies: LatencyModel, prefill: int = 1, decode: int = 1, **limits: int) -> Cluster:
    pools = tuple(ModelPool(latency=one, prefill=prefill, decode=decode) for one in latencies)
    return Cluster(pools=pools, **limits)


class Case(NamedTuple):
    """`normal` is one trace per pool."""

    cluster: Cluster
    sessions: tuple[RoutedWork, ...] = ()
    normal: tuple[Trace | None, ...] = ()

    def run(self, approach: Approach = NO_SHADOW) -> Outcome:
        workload = Workload(normal=self.normal, sessions=self.sessions)
        simulation = Simulation(self.cluster, workload, approach, with_numba=False)
        outcome = simulation.run()
        check(simulation)
        assert outcome.finished.all()
        return outcome


def lasts(latency: LatencyModel, decodes: tuple[int, ...] = (), *chunks: tuple[int, int]) -> float:
    return latency.iteration_s(Iteration(decodes, tuple(Chunk(*chunk) for chunk in chunks)))


def most_tokens(
    latency: LatencyModel,
    longest_s: float,
    context: int,
    limit: int,
    decodes: tuple[int, ...] = (),
    *chunks: tuple[int, int],
) -> int:
    """Largest shadow chunk, found one by one."""
    for tokens in range(limit, 0, -1):
        if lasts(latency, decodes, *chunks, (tokens, context)) <= longest_s:
            return tokens
    return 0
