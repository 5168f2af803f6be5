"""Rows and cells for tests of the live benchmark's report: what is not named is unremarkable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.live.records import (
    Calibration,
    CallRow,
    CellFacts,
    CellResult,
    EngineFacts,
    ModelCalibration,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from policy.vocabulary import Controller

CALIBRATION = Calibration(
    models={
        "small": ModelCalibration(
            prefill_fixed_s=0.1,
            prefill_s_per_token=0.002,
            decode_s=0.05,
            saturated_per_s=1.5,
            capacity_per_s=1.0,
        )
    }
)
"""SLOs of a 100-token prompt: TTFT 1.5 s, TPOT 0.25 s."""


def a_normal(key: str = "n1", **given: Any) -> CallRow:
    given = {"ttft_ms": 300.0, "e2el_ms": 1200.0, "output_tokens": 10} | given
    return CallRow(kind="normal", key=key, model="small", at_s=1.0, prompt_tokens=100, **given)


def a_call(key: str = "s/2", call: int = 2, **given: Any) -> CallRow:
    given = {"ttft_ms": 500.0, "e2el_ms": 2000.0, "output_tokens": 10, "cached_tokens": 800} | given
    return CallRow(
        kind="routed", key=key, model="small", at_s=2.0, call=call, prompt_tokens=1000, **given
    )


def a_trace(waits_ms: Sequence[float]) -> EngineFacts:
    return EngineFacts(
        steps=100,
        shadow_steps=10,
        shadow_tokens=900,
        shadow_step_p99_ms=400.0,
        shadow_step_max_ms=450.0,
        arrival_waits_ms=tuple(waits_ms),
        max_foreground_wait_ms=300.0,
        grants={"granted": 10},
    )


def a_result(
    controller: Controller,
    rows: Sequence[CallRow],
    load: float = 0.3,
    repeat: int = 1,
    engines: EngineFacts | None = None,
) -> CellResult:
    facts = CellFacts(
        load=load,
        controller=controller.value,
        repeat=repeat,
        started_unix_s=0.0,
        duration_s=100.0,
        whole_s=110.0,
        client_cpu_share=0.02,
        coordinator_cpu_share=0.03,
        shadow_tokens_computed=400,
        shadow_tokens_used=100,
        energy_j=None,
        engines=engines,
    )
    return CellResult(facts=facts, rows=tuple(rows))
