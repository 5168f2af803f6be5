"""Energy of a run under an ASSUMED power model: no measurement of power exists here, so whoever
shows a figure of it says so.

A GPU draws `idle_w` always, `active_w` more while an iteration runs, and `compute_w` more for the
share of the time in which its arithmetic units work at the rate that the fitted GEMMs reach."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from bench.sim.cluster import Cluster
    from bench.sim.latency import LatencyModel
    from bench.sim.outcome import InstanceOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerModel:
    """Of one H100 of 700 W; all three numbers are assumed."""

    idle_w: float = 100.0
    active_w: float = 250.0
    compute_w: float = 350.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) >= 0:
                raise ValueError(
                    f"power.{field.name} must be >= 0, got {getattr(self, field.name)}"
                )


ASSUMED = PowerModel()


def energy_j(
    instances: InstanceOutcome, cluster: Cluster, span_s: float, power: PowerModel = ASSUMED
) -> np.ndarray:
    """Of each instance over `span_s`, the time that the run took."""
    compute_s_per_token = np.array([_compute_s_per_token(pool.latency) for pool in cluster.pools])
    tokens = instances.computed_tokens + instances.shadow_computed_tokens
    compute_s = tokens * compute_s_per_token[instances.model]
    per_gpu_j = power.idle_w * span_s + power.active_w * instances.busy_s
    energy: np.ndarray = instances.gpus * (per_gpu_j + power.compute_w * compute_s)
    return energy


def _compute_s_per_token(latency: LatencyModel) -> float:
    """What one more token of a large iteration takes, attention left out."""
    large, larger = 4096, 8192
    return (latency.linear_s(larger) - latency.linear_s(large)) / (larger - large)
