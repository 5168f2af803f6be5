"""An engine's parameters, for tests with and without vLLM."""

from __future__ import annotations

from typing import Any

from engine.params import EngineParams, StepTimeStart
from policy.vocabulary import Controller, Role


def params(**changes: Any) -> EngineParams:
    """Budgets that bind at `max_chunk_tokens`, so that a test counts tokens and not seconds."""
    fields: dict[str, Any] = {
        "instance": "test",
        "model": "tiny-a",
        "role": Role.COLOCATED,
        "slo_ttft_s": 100.0,
        "slo_tpot_s": 100.0,
        "controller": Controller.HARVEST_SLO,
        "beta": 1.0,
        "delta": 1.0,
        "margin": 0.0,
        "n_min_tokens": 64,
        "iteration_cap_s": 50.0,
        "max_chunk_tokens": 64,
        "segment_tokens": 4096,
        "kv_cap_share": 0.25,
        "idle_age_s": 5.0,
        "min_switch_probability": 0.0,
        "shadow_timeout_s": 60.0,
        "pull_timeout_s": 5.0,
        "step_time": StepTimeStart(
            fixed_s=1e-6, s_per_request=0.0, s_per_token=1e-9, s_per_token_context=0.0
        ),
    }
    return EngineParams(**(fields | changes))
