"""Small configurations and results."""

from __future__ import annotations

from typing import Any

from bench.study.records import ApproachResult, NormalTraffic, Sums, Work
from bench.study.schema import (
    DrawnSessions,
    NormalConfig,
    PoolConfig,
    RunConfig,
    SessionsConfig,
    SimConfig,
)

SMALL, LARGE = "Qwen2.5-7B", "Llama-3.1-8B"


def a_config(**changes: Any) -> SimConfig:
    """Two models of one instance each, for half a minute."""
    settings: dict[str, Any] = {
        "models": {SMALL: PoolConfig(colocated=1), LARGE: PoolConfig(colocated=1)},
        "normal": NormalConfig(),
        "sessions": SessionsConfig(workload=DrawnSessions(benchmark="FusionBench", per_s=0.2)),
        "run": RunConfig(warmup_s=10, measured_s=20, drain_s=5),
    }
    return SimConfig(**{**settings, **changes})


def some_sums(calls: int = 10, latency_s: float = 20.0, ttft_s: float = 5.0, **more: Any) -> Sums:
    values: dict[str, Any] = {"prompt_tokens": 1000, "cached_tokens": 500, "cost_dollars": 1.0}
    return Sums(calls=calls, latency_s=latency_s, ttft_s=ttft_s, **{**values, **more})


def a_result(
    switches: Sums | None = None, every: Sums | None = None, **work: Any
) -> ApproachResult:
    values: dict[str, Any] = {
        "gpus": 2,
        "prefill_tokens": 1000,
        "shadow_computed_tokens": 0,
        "shadow_used_tokens": 0,
        "good_requests": 100,
        "energy_j": 1000.0,
        "busy_share": 0.5,
        "link_busy_share": 0.0,
    }
    switches = switches or some_sums()
    return ApproachResult(
        sessions=5,
        all_calls=every or some_sums(calls=40, latency_s=60.0),
        switch_calls=switches,
        switch_calls_by_model={SMALL: switches},
        switch_calls_by_context={"0": switches},
        normal=NormalTraffic(requests=200, meeting_slos=190, ttft_s=20.0, tpot_s=2.0),
        work=Work(**{**values, **work}),
    )
