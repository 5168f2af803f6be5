"""Switches of a run that exclude each other, or name what cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from bench.sim.approach import Approach, Dedicated, HostTier
from policy.vocabulary import Controller

SLO = Controller.HARVEST_SLO


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        ({"beta": 0}, "approach.beta must be > 0 and <= 1, got 0"),
        ({"delta": 1.5}, "approach.delta must be >= 0 and <= 1, got 1.5"),
        ({"n_min_tokens": 0}, "approach.n_min_tokens must be >= 1, got 0"),
        ({"kv_cap_share": 0}, "approach.kv_cap_share must be > 0 and <= 1, got 0"),
        ({"top_k": 0}, "approach.top_k must be >= 1, got 0"),
        ({"oracle": True, "controller": SLO}, "controller must be off, got harvest-slo"),
        ({"oracle": True, "dedicated": Dedicated.KV_MOVES}, "exclude each other"),
    ],
)
def test_what_cannot_be_is_refused(switches: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Approach(**switches)


def test_a_host_tier_has_room_and_a_link() -> None:
    with pytest.raises(ValueError, match=r"host_tier\.bytes_per_s_per_gpu must be > 0, got 0"):
        HostTier(bytes_per_s_per_gpu=0)
