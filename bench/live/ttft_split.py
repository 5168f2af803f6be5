"""The time to a call's first token in four parts that add up to it, where P and D are apart.

    queue     client, coordinator, and P before the first iteration of the call
    prefill   P's iterations, and its answer with the hand-off
    transfer  D before the first iteration: the pull, and a place there
    decode    D's first iteration, and its answer

What P and D waited for they tell themselves (vLLM's `enable_per_request_metrics`); how long a leg
took the coordinator knows; the rest is the client's clock. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from bench.demo.client import SessionCall
    from bench.live.records import CallRow

PARTS = ("queue_ms", "prefill_ms", "transfer_ms", "decode_ms")


def with_account(row: CallRow, told: SessionCall | None) -> CallRow:
    """The row with what the coordinator says of its call. It has D's wait as `transfer_ms`."""
    if told is None:
        return row
    parts = _parts(row, told) if row.ok else dict.fromkeys(PARTS)
    return msgspec.structs.replace(row, shadow_tokens=told.shadow_tokens, **parts)


def _parts(row: CallRow, told: SessionCall) -> dict[str, float | None]:
    if told.d_leg_ms is None or row.transfer_ms is None or row.p_instance == row.d_instance:
        return dict.fromkeys(PARTS)
    # Without a P leg D computes the prompt, as part of `decode`.
    p_leg_ms, p_queue_ms = told.p_leg_ms or 0.0, told.p_queue_ms or 0.0
    around_ms = row.ttft_ms - p_leg_ms - told.d_leg_ms
    values_ms = (
        around_ms + p_queue_ms,
        p_leg_ms - p_queue_ms,
        row.transfer_ms,
        told.d_leg_ms - row.transfer_ms,
    )
    return {part: round(value_ms, 2) for part, value_ms in zip(PARTS, values_ms, strict=True)}
