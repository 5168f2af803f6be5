"""What `policy.slack` is asked and answers: parameters, the load of one iteration, the grant.

Pure values. Hosts: engine.planning, bench.sim, which import them from `policy.slack`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final, Literal, NamedTuple

from policy.step_time import NO_BATCH, Batch
from policy.vocabulary import Controller, Role, Slo

AUTO: Final = "auto"
MIN_AUTO_TOKENS = 16
"""Least n_min under `auto`, about one KV block; where an instance that has seen nothing begins."""


class SlackReason(StrEnum):
    """Why a grant is what it is; also the metric label."""

    GRANTED = "granted"
    OFF = "off"
    NO_JOB = "no_job"
    UNLIKELY = "unlikely"
    FOREGROUND_WAITING = "foreground_waiting"
    ADMISSION_BLOCKED = "admission_blocked"
    ROUTED_IN_BATCH = "routed_in_batch"
    NO_CREDIT = "no_credit"
    NO_SLACK = "no_slack"
    NO_SHADOW_KV = "no_shadow_kv"
    BELOW_MINIMUM = "below_minimum"


class Accrual(StrEnum):
    """Which decode-only iterations earn credit; `any` is the paper's, whose bound it breaks."""

    ROUTED = "routed"
    ANY = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackParams:
    """`configs.schema.ShadowConfig`, plus what the instance is and whom it serves by default."""

    controller: Controller
    beta: float
    """Share of the smallest TPOT SLO that an iteration with shadow tokens may last."""
    delta: float
    """Longest slow-down of routed calls: credit earned per second of decode-only iteration."""
    margin: float
    """Share of every SLO that is kept in reserve."""
    n_min_tokens: int | Literal["auto"]
    """Smaller chunks are deferred: each one reads the whole cached context again. `auto` weighs
    that cost (`reread_share`) instead of naming a number."""
    iteration_cap_s: float
    """See the module docstring of policy.slack; 0 means beta * T alone."""
    max_chunk_tokens: int
    """Of a busy iteration. An idle one is bounded by its cap alone."""
    slo: Slo
    """Of requests that carry none."""
    role: Role
    reread_share: float = 0.25
    """Under n_min `auto`: most of a chunk's time that may go into what every chunk costs again."""
    accrual: Accrual = Accrual.ROUTED

    def __post_init__(self) -> None:
        n_min = MIN_AUTO_TOKENS if self.n_min_tokens == AUTO else self.n_min_tokens
        limits = {
            "beta": (0 < self.beta <= 1, "> 0 and <= 1"),
            "delta": (0 <= self.delta <= 1, ">= 0 and <= 1"),
            "margin": (0 <= self.margin < 1, ">= 0 and < 1"),
            "n_min_tokens": (n_min >= 1, ">= 1"),
            "iteration_cap_s": (self.iteration_cap_s >= 0, ">= 0"),
            "max_chunk_tokens": (
                self.max_chunk_tokens >= n_min,
                f">= n_min_tokens ({n_min}), or no chunk would ever be granted",
            ),
            "reread_share": (0 < self.reread_share < 1, "> 0 and < 1"),
        }
        for name, (holds, limit) in limits.items():
            if not holds:
                raise ValueError(f"shadow.{name} must be {limit}, got {getattr(self, name)}")
        if self.role is Role.PREFILL and self.iteration_cap_s == 0:
            raise ValueError("shadow.iteration_cap_s must be > 0 on a prefill instance, got 0")


class JobLoad(NamedTuple):
    """What is left of one shadow job, and the context that its target already holds."""

    missing_tokens: int
    context_tokens: int
    probability: float
    started: bool = False
    """Some of its tokens were scheduled before; only `request` looks at it."""


class StepLoad(NamedTuple):
    """The iteration being built: what is in flight of others, and the jobs that may follow.

    The host keeps the smallest values itself, because it can do so without looking at every request
    in every iteration; `policy.slack` has the formulas (`decode_due_s`, `prefill_slack_s`)."""

    now_s: float
    waiting_requests: int
    admission_blocked: bool
    busy: bool
    """Some normal or routed request is in flight."""
    carries_routed: bool
    """A routed one is."""
    min_tpot_s: float
    """Smallest TPOT SLO of the normal and routed requests in flight; read only while busy."""
    free_shadow_tokens: int
    jobs: tuple[JobLoad, ...]
    """The next ones, in order. A grant never exceeds what they miss together."""
    min_slack_s: float = inf
    """Of the normal requests in flight, or a lower bound that is beyond the cap: a routed request
    has no slack to lend, the credit protects it."""
    planned: Batch = NO_BATCH
    """What this iteration carries of normal and routed requests."""
    in_flight_s: float = 0.0
    """Predicted time of the iterations that were built before and have not come back: under async
    scheduling an arrival waits for them too."""
    in_flight_charge_s: float = 0.0
    """What those will take out of the credit."""


class SlackGrant(NamedTuple):
    """`tokens` > 0 only with GRANTED. Then `predicted_s` <= `budget_s`, except under `request` and
    `eager`, which look at no budget: both are 0."""

    tokens: int
    reason: SlackReason
    budget_s: float = 0.0
    predicted_s: float = 0.0
    charge_s: float = 0.0
    """Of the credit, if the iteration runs as predicted."""
