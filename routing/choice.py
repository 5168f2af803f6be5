"""Small or large, and where the session will probably go next.

Pure. Host: coordinator.learned_router."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from routing.router_file import Drift


@dataclass(frozen=True, slots=True)
class StepChoice:
    uses_small: bool
    next_small_probability: float
    """That the same rule takes the small model for the call after this one."""


def choose_step(logit: float, min_probability: float, drift: Drift) -> StepChoice:
    """The small model, if it does as well with at least `min_probability`."""
    threshold = _logit(min_probability)
    expected = drift.start + drift.share * logit
    above = (expected - threshold) / drift.spread
    return StepChoice(logit >= threshold, 0.5 * (1 + math.erf(above / math.sqrt(2))))


def _logit(probability: float) -> float:
    if probability <= 0:
        return -math.inf
    return math.inf if probability >= 1 else math.log(probability / (1 - probability))
