"""What the planner is asked about: models, a trace of normal traffic, GPUs, a kind of sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.sim.hardware import LatencyMode, architecture, architectures
from bench.study.schema import (
    DrawnSessions,
    NormalConfig,
    PoolConfig,
    PublishedTraffic,
    RunConfig,
    SessionsConfig,
    SimConfig,
    TraceTraffic,
)
from bench.study.workload import trace_of
from bench.workloads.loaders import TraceFormat
from bench.workloads.routers import MAX_MODELS
from bench.workloads.sessions import session_kinds
from bench.workloads.traffic import HOUR_S

if TYPE_CHECKING:
    from collections.abc import Mapping

MIN_INSTANCES, MAX_PLANNED = 2, 16
PUBLISHED = ("conversation", "code")


class PlanRefused(ValueError):
    """The question cannot be answered as it was asked; the message says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    models: tuple[str, ...]
    traffic: PublishedTraffic | TraceTraffic
    gpus: int
    """For each model."""
    rho: float
    benchmark: str
    sessions_per_s: float
    latency: LatencyMode
    measured_s: float
    seeds: int

    def __post_init__(self) -> None:
        known = sorted(architectures())
        for model in self.models:
            if model not in known:
                raise PlanRefused(f"--models: {model!r} has no architecture here; known: {known}")
        if len(set(self.models)) != len(self.models) or not 1 <= len(self.models) <= MAX_MODELS:
            raise PlanRefused(
                f"--models: must name 1 to {MAX_MODELS} different models, got {list(self.models)}"
            )
        if self.benchmark not in session_kinds():
            raise PlanRefused(
                f"--benchmark: must be one of {sorted(session_kinds())}, got {self.benchmark!r}"
            )
        for model in self.models:
            _check_instances(model, self.gpus)

    def instances(self, model: str) -> int:
        return self.gpus // architecture(model).tensor_parallel

    def splits(self, model: str) -> tuple[PoolConfig, ...]:
        """From one prefill instance to one decode instance."""
        count = self.instances(model)
        return tuple(PoolConfig(prefill=p, decode=count - p) for p in range(1, count))

    def config(self, pools: Mapping[str, PoolConfig]) -> SimConfig:
        """Sessions need two models to be routed between."""
        sessions = None
        if len(pools) > 1:
            sessions = SessionsConfig(
                workload=DrawnSessions(benchmark=self.benchmark, per_s=self.sessions_per_s)
            )
        return SimConfig(
            latency=self.latency,
            models=dict(pools),
            normal=NormalConfig(traffic=self.traffic, rho=self.rho),
            sessions=sessions,
            run=RunConfig(measured_s=self.measured_s),
        )


def traffic_of(text: str) -> PublishedTraffic | TraceTraffic:
    """`conversation` or `code` (Azure 2024, published statistics), or FORMAT:FILE."""
    if text in PUBLISHED:
        return PublishedTraffic(service="code" if text == "code" else "conversation")
    trace_format, colon, path = text.partition(":")
    formats = [str(one) for one in TraceFormat]
    if not colon or trace_format not in formats:
        raise PlanRefused(
            f"--trace: must be one of {list(PUBLISHED)} or FORMAT:FILE with a format of {formats}, "
            f"got {text!r}"
        )
    try:
        span_s = trace_of(path, TraceFormat(trace_format)).span_s
    except OSError as error:
        raise PlanRefused(f"--trace: {path}: {error.strerror}") from error
    if span_s <= 0:
        raise PlanRefused(f"--trace: {path}: all requests arrive at once: no rate can be read")
    return TraceTraffic(
        kind="trace",
        path=path,
        format=TraceFormat(trace_format),
        window_s=min(HOUR_S, span_s),
    )


def _check_instances(model: str, gpus: int) -> None:
    per_instance = architecture(model).tensor_parallel
    count = gpus // per_instance
    if not MIN_INSTANCES <= count <= MAX_PLANNED or gpus % per_instance:
        raise PlanRefused(
            f"--gpus: {model} takes {per_instance} GPUs per instance, so {gpus} GPUs are "
            f"{gpus / per_instance:g} instances; a split needs a whole number from "
            f"{MIN_INSTANCES} to {MAX_PLANNED}"
        )
