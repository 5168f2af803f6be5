"""The SLOs of many requests at once. Pure. Hosts: bench.sim.build, bench.sim.capacity."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from bench.sim.latency import LatencyModel

TTFT_GRID_TOKENS = 64
"""The SLO of a prompt is looked up on this grid: its prefill time is a sum over chunks."""


def ttft_slos_s(latency: LatencyModel, prompt_tokens: np.ndarray) -> np.ndarray:
    grid = -(-prompt_tokens // TTFT_GRID_TOKENS)
    lengths, places = np.unique(grid, return_inverse=True)
    slos_s = np.array([latency.ttft_slo_s(int(length) * TTFT_GRID_TOKENS) for length in lengths])
    return slos_s[places]
