"""The paper's sensitivities (figures 9, 15 and 16): one setting at a time, on one pair per trace.

No Shadow runs at the same setting, so a change of the cluster or of the traffic is compared with
itself; capacities are measured for each cluster, and the load stays a share of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.paper.experiments import (
    INSTANCES,
    ClusterKind,
)
from bench.paper.published import pairs
from bench.sim.hardware import architecture
from bench.study.approaches import ApproachName
from bench.study.schema import (
    DrawnSessions,
    MarkovRouter,
    PoolConfig,
    PublishedTraffic,
    RandomRouter,
    SimConfig,
)
from bench.workloads.routers import MAX_MODELS, MIN_MODELS, table1_switch_probability
from bench.workloads.sessions import session_kind

Change = Callable[[SimConfig, float], SimConfig]
SLO, HOST = ApproachName.HARVEST_SLO, ApproachName.HARVEST_SLO_HOST
TIER = ApproachName.HOST_TIER
ORACLE, ORACLE_HOST = ApproachName.ORACLE, ApproachName.ORACLE_HOST
LLM, SWITCH = "llm_latency_reduction", "switch_latency_reduction"
UNUSED = "unused_shadow_pct"
MORE_SWITCHES = 5.1 / 3.2
"""What a session switches more with five models than with two (appendix C)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    key: str
    label: str
    metric: str
    values: tuple[float, ...]
    default: float
    change: Change
    approaches: tuple[ApproachName, ...] = (SLO, HOST, ORACLE_HOST)
    cluster: ClusterKind = ClusterKind.COLOCATED


def _shadow(name: str, kind: type = float) -> Change:
    return lambda config, value: _with(config, shadow={name: kind(value)})


def _with(config: SimConfig, **parts: dict[str, Any]) -> SimConfig:
    """Sections changed in part."""
    update = {
        name: getattr(config, name).model_copy(update=changed) for name, changed in parts.items()
    }
    return config.model_copy(update=update)


def _instances(config: SimConfig, count: float) -> SimConfig:
    """Sessions grow with the cluster."""
    models = {model: PoolConfig(colocated=int(count)) for model in config.models}
    workload = _drawn(config)
    grown = workload.model_copy(update={"per_s": workload.per_s * count / INSTANCES})
    changed = config.model_copy(update={"models": models})
    return _with(changed, sessions={"workload": grown})


def _tensor_parallel(config: SimConfig, factor: float) -> SimConfig:
    models = {
        model: pool.model_copy(
            update={"tensor_parallel": min(8, int(factor * architecture(model).tensor_parallel))}
        )
        for model, pool in config.models.items()
    }
    return config.model_copy(update={"models": models})


def _prefill_instances(config: SimConfig, count: float) -> SimConfig:
    pool = PoolConfig(prefill=int(count), decode=INSTANCES - int(count))
    return config.model_copy(update={"models": dict.fromkeys(config.models, pool)})


def _router(config: SimConfig, probability: float) -> SimConfig:
    return _with(config, sessions={"router": MarkovRouter(switch_probability=probability)})


def _models(config: SimConfig, count: float) -> SimConfig:
    """The sessions stay, and leave their model more often: 3.2 switches per session with two
    models, 5.1 with five (appendix C); in between it is a line, which the paper does not say."""
    benchmark = _drawn(config).benchmark
    models = pairs().candidates[benchmark][: int(count)]
    probability = table1_switch_probability(session_kind(benchmark).published)
    grown = 1 + (MORE_SWITCHES - 1) * (count - MIN_MODELS) / (MAX_MODELS - MIN_MODELS)
    changed = config.model_copy(
        update={"models": {model: PoolConfig(colocated=INSTANCES) for model in models}}
    )
    return _router(changed, min(1.0, probability * grown))


def _top1(config: SimConfig, count: float) -> SimConfig:
    return _with(_models(config, count), shadow={"top_k": 1})


def _random(config: SimConfig, is_random: float) -> SimConfig:
    router = RandomRouter(kind="random") if is_random else MarkovRouter()
    return _with(config, sessions={"router": router})


def _drawn(config: SimConfig) -> DrawnSessions:
    assert config.sessions is not None
    assert isinstance(config.sessions.workload, DrawnSessions)
    return config.sessions.workload


def _code(config: SimConfig, is_code: float) -> SimConfig:
    traffic = PublishedTraffic(service="code" if is_code else "conversation")
    return _with(config, normal={"traffic": traffic})


SWEEPS = (
    Sweep(
        key="slo_scale", label="SLOs (x default), provisioning fixed", metric=LLM,
        values=(0.5, 1.0, 2.0, 3.0), default=1.0,
        change=lambda config, value: config.model_copy(update={"slo_scale": value}),
    ),
    Sweep(
        key="rho", label="load of normal traffic (share of capacity)", metric=LLM,
        values=(0.2, 0.5, 0.7, 0.9), default=0.7,
        change=lambda config, value: _with(config, normal={"rho": value}),
    ),
    Sweep(
        key="kv_cap_share", label="cap of shadow KV (share of the pool)", metric=LLM,
        values=(0.05, 0.25, 1.0), default=0.25, change=_shadow("kv_cap_share"),
    ),
    Sweep(
        key="idle_age_s", label="age of entries that a shadow may displace (s)", metric=LLM,
        values=(0, 2, 5, 10, 120), default=5, change=_shadow("idle_age_s"),
    ),
    Sweep(
        key="beta", label="iteration cap (x TPOT SLO)", metric=LLM, values=(0.25, 0.5, 1.0),
        default=0.5, change=_shadow("beta"),
    ),
    Sweep(
        key="margin", label="SLO margin", metric=LLM, values=(0.0, 0.1, 0.4), default=0.1,
        change=_shadow("margin"),
    ),
    Sweep(
        key="delta", label="credit rate", metric=LLM, values=(0.0, 0.025, 0.1), default=0.025,
        change=_shadow("delta"),
    ),
    Sweep(
        key="n_min_tokens", label="smallest shadow chunk (tokens)", metric=LLM,
        values=(64, 256, 512, 1024), default=256, change=_shadow("n_min_tokens", int),
    ),
    Sweep(
        key="batch_tokens", label="prefill chunk budget (tokens)", metric=LLM,
        values=(512, 1024, 2048, 8192), default=2048,
        change=lambda config, value: config.model_copy(update={"max_batch_tokens": int(value)}),
    ),
    Sweep(
        key="switch_probability", label="switch probability per step", metric=LLM,
        values=(0.05, 0.15, 0.3, 0.5), default=0.3, change=_router,
    ),
    Sweep(
        key="switch_probability_switch", label="switch probability per step", metric=SWITCH,
        values=(0.05, 0.15, 0.3, 0.5), default=0.3, change=_router,
    ),
    Sweep(
        key="host_gb_per_gpu", label="host tier (GB per GPU)", metric=SWITCH,
        values=(16, 32, 128), default=32, approaches=(TIER, HOST, ORACLE_HOST),
        change=lambda config, value: _with(config, host_tier={"gb_per_gpu": value}),
    ),
    Sweep(
        key="pcie_gb_per_s", label="PCIe (GB/s)", metric=SWITCH, values=(8, 25, 64), default=25,
        approaches=(TIER, HOST, ORACLE_HOST),
        change=lambda config, value: _with(config, host_tier={"gb_per_s_per_gpu": value}),
    ),
    Sweep(
        key="instances", label="instances per model", metric=LLM, values=(2, 4, 16), default=4,
        change=_instances,
    ),
    Sweep(
        key="tensor_parallel_factor", label="tensor-parallel degree (x default)", metric=LLM,
        values=(1, 2), default=1, change=_tensor_parallel,
    ),
    Sweep(
        key="routers", label="models per router", metric=LLM, values=(2, 3, 4, 5), default=2,
        approaches=(HOST, ORACLE_HOST), change=_models,
    ),
    Sweep(
        key="routers_top1", label="models per router, likeliest target only", metric=LLM,
        values=(2, 3, 4, 5), default=2, approaches=(HOST, ORACLE_HOST), change=_top1,
    ),
    Sweep(
        key="routers_switch", label="models per router", metric=SWITCH, values=(2, 3, 4, 5),
        default=2, approaches=(HOST, ORACLE_HOST), change=_models,
    ),
    Sweep(
        key="routers_unused", label="models per router", metric=UNUSED, values=(2, 3, 4, 5),
        default=2, approaches=(HOST, ORACLE_HOST), change=_models,
    ),
    Sweep(
        key="routers_top1_unused", label="models per router, likeliest target only",
        metric=UNUSED, values=(2, 3, 4, 5), default=2, approaches=(HOST, ORACLE_HOST),
        change=_top1,
    ),
    Sweep(
        key="random_router", label="routes: Table 1's rate 0, random 1", metric=LLM,
        values=(0, 1), default=0, change=_random,
    ),
    Sweep(
        key="code_traffic", label="normal traffic: conversation 0, code 1", metric=LLM,
        values=(0, 1), default=0, change=_code,
    ),
    Sweep(
        key="prefill_instances", label="prefill instances of four", metric=LLM, values=(1, 2, 3),
        default=3, approaches=(SLO, ORACLE), cluster=ClusterKind.PD, change=_prefill_instances,
    ),
    Sweep(
        key="link_gb_per_s", label="KV link (GB/s per GPU)", metric=LLM,
        values=(10, 20, 50, 160), default=50, approaches=(SLO, ORACLE), cluster=ClusterKind.PD,
        change=lambda config, value: config.model_copy(update={"link_gb_per_s_per_gpu": value}),
    ),
)  # fmt: skip
