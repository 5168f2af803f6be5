"""The cluster and the arrivals of a configuration.

Arrivals depend on the seed, the window and the workload, never on the approach or on the cluster's
sizes: every approach meets the same requests, sessions and routes. Each stream of chance has a seed
of its own, so that more sessions do not shift the normal traffic."""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bench.sim.build import RoutedWork, Workload
from bench.sim.cluster import Cluster, ModelPool
from bench.sim.latency import LatencyModel
from bench.study.schema import (
    DrawnSessions,
    FixedRouter,
    MarkovRouter,
    MatrixRouter,
    PublishedTraffic,
    RandomRouter,
)
from bench.workloads.lengths import Lengths, azure_2024
from bench.workloads.loaders import TraceFormat, load_trace
from bench.workloads.recorded import recorded_sessions
from bench.workloads.routers import (
    markov_route,
    policy_route,
    query_scores,
    random_route,
    table1_switch_probability,
    uniform_switches,
)
from bench.workloads.score_matrix import load_score_matrix, stand_ins
from bench.workloads.sessions import draw_sessions, session_kind
from bench.workloads.traffic import Load, drawn_traffic, load_windows, replayed_traffic

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.study.schema import (
        NormalConfig,
        PoolConfig,
        RecordedSessions,
        SessionsConfig,
        SimConfig,
        TraceTraffic,
    )
    from bench.workloads.routers import Route
    from bench.workloads.score_matrix import ScoreMatrix
    from bench.workloads.sessions import RoutedSession
    from bench.workloads.trace import Trace
    from bench.workloads.traffic import LengthLaw


def cluster_of(config: SimConfig) -> Cluster:
    return Cluster(
        pools=tuple(_pool(config, model, pool) for model, pool in config.models.items()),
        max_batch_tokens=config.max_batch_tokens,
        max_sequences=config.max_sequences,
        link_bytes_per_s_per_gpu=config.link_gb_per_s_per_gpu * 1e9,
        keeps_finished=config.keeps_finished,
    )


def workload_of(config: SimConfig, capacities_per_s: tuple[float, ...]) -> Workload:
    """`capacities_per_s` of each pool; nothing is asked of them without normal traffic."""
    normal: tuple[Trace | None, ...] = ()
    if config.normal is not None:
        normal = tuple(
            _normal(config, config.normal, number, capacity_per_s)
            for number, capacity_per_s in enumerate(capacities_per_s)
        )
    sessions = () if config.sessions is None else _sessions(config, config.sessions)
    return Workload(normal=normal, sessions=sessions)


class Scored(NamedTuple):
    """A session under a router that knows the scores."""

    route: Route
    scores: np.ndarray
    """By call and model."""


def scored_sessions(config: SimConfig) -> tuple[Scored, ...]:
    """Of the measured window, as `workload_of` routes them."""
    assert config.sessions is not None
    router = config.sessions.router
    assert isinstance(router, MatrixRouter)
    rng = _rng(config, "routes")
    scored = [
        (session, _scored(session, config, router, rng))
        for session in _drawn(config, config.sessions.workload)
    ]
    return tuple(one for session, one in scored if session.arrival_s >= config.run.warmup_s)


def length_law(traffic: PublishedTraffic | TraceTraffic) -> LengthLaw:
    """Of the requests at which a capacity is measured."""
    if isinstance(traffic, PublishedTraffic):
        return azure_2024(traffic.service)
    return TraceLengths(trace_of(traffic.path, traffic.format))


class TraceLengths:
    """Lengths as they are in a trace, drawn together."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def draw(self, count: int, rng: np.random.Generator) -> Lengths:
        picked = rng.integers(len(self._trace), size=count)
        return Lengths(self._trace.input_tokens[picked], self._trace.output_tokens[picked])


@lru_cache(maxsize=4)
def trace_of(path: str, trace_format: TraceFormat) -> Trace:
    return load_trace(path, trace_format)


@lru_cache(maxsize=8)
def _matrix_of(path: str, models: tuple[str, ...]) -> ScoreMatrix:
    return load_score_matrix(path, stand_ins(models))


def _pool(config: SimConfig, model: str, pool: PoolConfig) -> ModelPool:
    return ModelPool(
        latency=LatencyModel(
            model,
            config.latency,
            tensor_parallel=pool.tensor_parallel,
            slo_scale=config.slo_scale,
        ),
        colocated=pool.colocated,
        prefill=pool.prefill,
        decode=pool.decode,
    )


def _rng(config: SimConfig, stream: str) -> np.random.Generator:
    window = "" if config.normal is None else str(config.normal.window)
    key = zlib.crc32(f"{stream}/{window}".encode())
    return np.random.default_rng(np.random.SeedSequence([config.run.seed, key]))


def _normal(config: SimConfig, normal: NormalConfig, pool: int, capacity_per_s: float) -> Trace:
    until_s = config.run.end_s + config.run.drain_s
    rng = _rng(config, f"normal-{pool}")
    traffic = normal.traffic
    if isinstance(traffic, PublishedTraffic):
        law = azure_2024(traffic.service)
        load = Load(
            capacity_per_s=capacity_per_s,
            rho=normal.rho,
            hour_load=law.hour_load[str(normal.window)],
        )
        return drawn_traffic(law, load.rate_per_s, until_s, rng)
    trace = trace_of(traffic.path, traffic.format)
    window = load_windows(trace, traffic.window_s)[str(normal.window)]
    load = Load(capacity_per_s=capacity_per_s, rho=normal.rho, hour_load=window.load)
    return replayed_traffic(
        trace.between(window.start_s, window.end_s), load.rate_per_s, until_s, rng
    )


def _sessions(config: SimConfig, sessions: SessionsConfig) -> tuple[RoutedWork, ...]:
    route = _router(config, sessions)
    return tuple(
        RoutedWork(session, route(session)) for session in _drawn(config, sessions.workload)
    )


def _drawn(
    config: SimConfig, workload: DrawnSessions | RecordedSessions
) -> tuple[RoutedSession, ...]:
    if isinstance(workload, DrawnSessions):
        return draw_sessions(
            workload.benchmark, workload.per_s, config.run.end_s, _rng(config, "sessions")
        )
    trace = trace_of(workload.path, TraceFormat.SESSIONS)
    return tuple(
        session for session in recorded_sessions(trace) if session.arrival_s < config.run.end_s
    )


def _router(config: SimConfig, sessions: SessionsConfig) -> Callable[[RoutedSession], Route]:
    rng, models, router = _rng(config, "routes"), tuple(config.models), sessions.router
    if isinstance(router, RandomRouter):
        return lambda session: random_route(len(session.calls), len(models), rng)
    if isinstance(router, FixedRouter):
        only = models.index(router.model)
        return lambda session: (only,) * len(session.calls)
    if isinstance(router, MatrixRouter):
        return lambda session: _scored(session, config, router, rng).route
    chain = uniform_switches(len(models), _switch_probability(router, sessions))
    return lambda session: markov_route(len(session.calls), chain, rng)


def _scored(
    session: RoutedSession, config: SimConfig, router: MatrixRouter, rng: np.random.Generator
) -> Scored:
    matrix = _matrix_of(router.path, tuple(config.models))
    scores = query_scores(len(session.calls), session.task, matrix, rng)
    return Scored(policy_route(scores, matrix, router.policy, rng), scores)


def _switch_probability(router: MarkovRouter, sessions: SessionsConfig) -> float:
    if router.switch_probability is not None:
        return router.switch_probability
    assert isinstance(sessions.workload, DrawnSessions)
    return table1_switch_probability(session_kind(sessions.workload.benchmark).published)
