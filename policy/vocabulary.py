"""The words that every other room uses: request and KV classes, SLOs, roles.

Hosts: engine, coordinator, bench.sim. The definitions are those of the paper's section 3."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What an instance does with a request."""

    PREFILL = "prefill"
    DECODE = "decode"
    COLOCATED = "colocated"


class RequestClass(StrEnum):
    """How the scheduler treats a request; an unmarked request is normal traffic."""

    NORMAL = "normal"
    ROUTED = "routed"
    SHADOW = "shadow"


class KvClass(StrEnum):
    """Eviction class of a cached KV block (paper section 3.3)."""

    NORMAL = "normal"
    SHADOW = "shadow"


class Controller(StrEnum):
    """Which rule grants shadow tokens (paper section 3.2, and its baselines)."""

    OFF = "off"
    HARVEST = "harvest"
    HARVEST_SLO = "harvest-slo"
    PREDICTIVE = "predictive"
    EAGER = "eager"
    REQUEST = "request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Latency targets of a request, in seconds."""

    ttft_s: float
    tpot_s: float

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s"):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"slo.{name} must be > 0, got {value}")
