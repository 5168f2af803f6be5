"""What a simulated cluster does for the calls of sessions: the switches of one run.

The topology is the cluster's (`cluster.ModelPool`); the named approaches of the paper's Table 2 are
sets of these switches. Defaults are the paper's."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from policy.slack import Accrual
from policy.vocabulary import Controller


class Credit(StrEnum):
    """What credit is compared with in an iteration that carries a routed call."""

    EXTRA = "extra"
    """The time that the shadow tokens add, as the engines do."""
    TOTAL = "total"
    """The whole iteration: line 10 of Algorithm 1, read literally."""


class Dedicated(StrEnum):
    """What a switch does with a shadow on the extra instance."""

    CALL_RUNS_THERE = "call_runs_there"
    KV_MOVES = "kv_moves"
    """Over the link, to the instance that the call is placed on."""


class Evicts(StrEnum):
    """What normal and routed requests displace where nothing is free."""

    SHADOW_FIRST = "shadow_first"
    """As the paper and the engines."""
    COLD_FIRST = "cold_first"
    """Entries of the normal class that are older than the idle age go before shadows."""


class Predicts(StrEnum):
    """What is foreseen of an iteration when its shadow tokens are counted out."""

    CONTEXT = "context"
    """All of it, as the engines: a chunk that reads a long context is a small one."""
    TOKENS = "tokens"
    """Line 10 of Algorithm 1, read literally: n tokens are found before a job is looked at, so that
    nothing is known of the context that they read. The iteration takes longer then."""


class TransferCounts(StrEnum):
    """To which of the two times the transfer and the decode queue of a split cluster count."""

    TPOT = "tpot"
    """As in the paper's appendix B."""
    TTFT = "ttft"
    """As a client sees it where the decode instance emits the first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTier:
    """Memory of the host that evicted KV of sessions spills to."""

    bytes_per_gpu: float = 32e9
    bytes_per_s_per_gpu: float = 25e9
    """Of PCIe, in each direction."""

    def __post_init__(self) -> None:
        for name in ("bytes_per_gpu", "bytes_per_s_per_gpu"):
            if not getattr(self, name) > 0:
                raise ValueError(f"host_tier.{name} must be > 0, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Approach:
    controller: Controller = Controller.OFF
    oracle: bool = False
    """A switch call finds h_k cached, for nothing."""
    dedicated: Dedicated | None = None
    """One extra instance per model runs all shadow work, and no normal traffic."""
    host_tier: HostTier | None = None
    credit: Credit = Credit.EXTRA
    accrual: Accrual = Accrual.ROUTED
    beta: float = 0.5
    delta: float = 0.025
    """The paper's `harvest` has 0.1."""
    margin: float = 0.1
    n_min_tokens: int = 256
    predicts: Predicts = Predicts.CONTEXT
    iteration_cap_s: float = 0.1
    """Of a prefill instance; a colocated one is bounded by beta * T."""
    kv_cap_share: float = 0.25
    idle_age_s: float = 5.0
    evicts: Evicts = Evicts.SHADOW_FIRST
    top_k: int = 4
    """Targets per session, likeliest first."""
    min_probability: float = 0.0
    """Less likely targets get no job. `predictive` gates at 0.25 by itself."""
    segment_tokens: int = 4096
    """Also what one push to a decode instance carries."""
    resubmit_tokens: int = 1024
    """While the other model streams, a job grows by at least so much."""
    transfer_counts_to: TransferCounts = TransferCounts.TPOT

    def __post_init__(self) -> None:
        limits = {
            "beta": (0 < self.beta <= 1, "> 0 and <= 1"),
            "delta": (0 <= self.delta <= 1, ">= 0 and <= 1"),
            "margin": (0 <= self.margin < 1, ">= 0 and < 1"),
            "n_min_tokens": (self.n_min_tokens >= 1, ">= 1"),
            "iteration_cap_s": (self.iteration_cap_s > 0, "> 0"),
            "kv_cap_share": (0 < self.kv_cap_share <= 1, "> 0 and <= 1"),
            "idle_age_s": (self.idle_age_s >= 0, ">= 0"),
            "top_k": (self.top_k >= 1, ">= 1"),
            "min_probability": (0 <= self.min_probability <= 1, "0 to 1"),
            "segment_tokens": (self.segment_tokens >= 1, ">= 1"),
            "resubmit_tokens": (self.resubmit_tokens >= 1, ">= 1"),
        }
        for name, (holds, limit) in limits.items():
            if not holds:
                raise ValueError(f"approach.{name} must be {limit}, got {getattr(self, name)}")
        if self.controller is not Controller.OFF and (self.oracle or self.dedicated is not None):
            raise ValueError(
                "approach: an oracle needs no shadow work and a dedicated instance runs all of it, "
                f"so controller must be off, got {self.controller.value}"
            )
        if self.oracle and self.dedicated is not None:
            raise ValueError("approach: oracle and dedicated exclude each other")

    @property
    def has_shadows(self) -> bool:
        return self.controller is not Controller.OFF or self.dedicated is not None


NO_SHADOW = Approach()
