"""What `policy.slack` is asked and answers: parameters, the load of one iteration, the grant.

Pure values. Hosts: engine.scheduler, bench.sim, which import them from `policy.slack`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from policy.vocabulary import Controller, RequestClass, Role, Slo


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
    n_min_tokens: int
    """Smaller chunks are deferred: each one reads the whole cached context again."""
    iteration_cap_s: float
    """See the module docstring; 0 means beta * T alone."""
    max_chunk_tokens: int
    slo: Slo
    """Of requests that carry none."""
    role: Role
    accrual: Accrual = Accrual.ROUTED

    def __post_init__(self) -> None:
        limits = {
            "beta": (0 < self.beta <= 1, "> 0 and <= 1"),
            "delta": (0 <= self.delta <= 1, ">= 0 and <= 1"),
            "margin": (0 <= self.margin < 1, ">= 0 and < 1"),
            "n_min_tokens": (self.n_min_tokens >= 1, ">= 1"),
            "iteration_cap_s": (self.iteration_cap_s >= 0, ">= 0"),
            "max_chunk_tokens": (
                self.max_chunk_tokens >= self.n_min_tokens,
                f">= n_min_tokens ({self.n_min_tokens}), or no chunk would ever be granted",
            ),
        }
        for name, (holds, limit) in limits.items():
            if not holds:
                raise ValueError(f"shadow.{name} must be {limit}, got {getattr(self, name)}")
        if self.role is Role.PREFILL and self.iteration_cap_s == 0:
            raise ValueError("shadow.iteration_cap_s must be > 0 on a prefill instance, got 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLoad:
    """One normal or routed request of the batch. Times are of the engine's monotonic clock."""

    request_class: RequestClass
    is_prefill: bool
    arrival_s: float
    first_token_s: float = 0.0
    """Of a decoding request."""
    iterations_since_first_token: int = 0
    remaining_prefill_s: float = 0.0
    """Predicted time of a prefilling request's chunks after this iteration's: the iteration itself
    is in the predicted time that the slack is compared with."""
    ttft_s: float | None = None
    """What was left of the TTFT SLO at `arrival_s`; None: the instance's default."""
    tpot_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLoad:
    """What is left of one shadow job, and the context that its target already holds."""

    missing_tokens: int
    context_tokens: int
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoad:
    """The iteration being built: what the engine planned for others, and the jobs that may follow.

    `requests` are the normal and routed ones in flight, `planned_*` counts what this iteration
    carries of them. A host that schedules several jobs per iteration lists the others, in order,
    in `later_jobs`; without them a grant never exceeds the first job."""

    now_s: float
    waiting_requests: int
    admission_blocked: bool
    requests: tuple[RequestLoad, ...]
    planned_requests: int
    planned_tokens: int
    planned_context_token_product: float
    """Sum of `step_time.attended` over the planned requests."""
    free_shadow_tokens: int
    first_job_missing_tokens: int
    first_job_probability: float
    first_job_context_tokens: int
    first_job_started: bool = False
    """Some of its tokens were scheduled before; only `request` looks at it."""
    later_jobs: tuple[JobLoad, ...] = ()
    batches_in_flight: int = 1
    """How many iterations, this one included, may be in flight: 2 under async scheduling."""


@dataclass(frozen=True, slots=True)
class SlackGrant:
    """`tokens` > 0 only with GRANTED. Then `predicted_s` <= `budget_s`, except under `request` and
    `eager`, which look at no budget: both are 0."""

    tokens: int
    reason: SlackReason
    budget_s: float = 0.0
    predicted_s: float = 0.0
