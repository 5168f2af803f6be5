"""What an engine might read of itself, for tests of those who show it."""

from __future__ import annotations

from typing import Any

from engine.counts import EngineCounts
from engine.exporter import Controls, Reading, TierReading
from engine.link_series import LinkReading
from policy.kv_class import KvPool
from policy.slack import SlackReason
from tests.engine.params_of import params


def a_reading(**changes: Any) -> Reading:
    fields: dict[str, Any] = {
        "params": params(),
        "counts": EngineCounts(),
        "jobs_arrived": 5,
        "jobs_ended": {"finished": 3, "superseded": 1},
        "grants": {SlackReason.GRANTED.value: 7, SlackReason.NO_SLACK.value: 2},
        "drops": 1,
        "pulls": 0,
        "pulls_timed_out": 0,
        "requests": {"running": 3, "waiting": 2},
        "queued_jobs": 1,
        "missing_tokens": 640,
        "blocks": {"held": 12, "cached": 30},
        "cap_blocks": 500,
        "pool": KvPool(
            total_blocks=1000,
            shadow_blocks=42,
            uncached_blocks=500,
            cached_shadow_blocks=30,
            idle_shadow_blocks=10,
            cached_normal_blocks=200,
            idle_normal_blocks=50,
        ),
        "evictions": {"normal": 1, "shadow": 4},
        "controls": Controls(
            credit_s=-0.01, base_factor=1.5, context_factor=1.0, read_factor=2.0, trusted_tokens=128
        ),
        "tier": TierReading(
            slots=100,
            block_bytes=4096,
            entries={"normal": 60, "shadow": 10},
            evictions={"normal": 1, "shadow": 9},
            promotions=5,
            stored_blocks=80,
            loaded_blocks=20,
            refused_blocks=3,
            hits={"loaded": 2, "too_few_tokens": 1},
            hurried_stores=4,
        ),
    }
    return Reading(**(fields | changes))


def a_link(**changes: Any) -> LinkReading:
    """Of a decode instance that has pulled twice as much for calls as for shadows."""
    fields: dict[str, Any] = {
        "asks": {"granted": 4, "no_free_kv": 1},
        "looks": {"granted": 4},
        "starts": {"normal": 8, "shadow_alone": 4},
        "outcomes": {"normal_done": 8, "shadow_done": 4},
        "in_flight": {"normal": 1, "shadow": 0},
        "bytes_in_flight": {"normal": 4096, "shadow": 0},
        "size_bytes": {"normal": 2_000_000, "shadow": 1_000_000},
        "busy_s": {"normal": 0.5, "shadow": 0.25},
        "idle_s": 3.0,
        "quarantines": 0,
        "refused_hand_offs": 0,
        "quarantined_pairs": 0,
    }
    return LinkReading(**(fields | changes))
