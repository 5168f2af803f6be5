"""What the control API answers: every shape with its fields, as the OpenAPI page shows them.

Fields are only ever added: the dashboard, the command line and routers of others read these."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from configs.schema import ShadowConfig  # noqa: TC001  pydantic resolves it
from coordinator.sessions import ShadowState, ShadowWorkKind  # noqa: TC001
from policy.hints import PROBABILITY_TOLERANCE
from policy.vocabulary import Controller, Role  # noqa: TC001


class Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelWarmth(Shape):
    """One model of one session. Tokens are counted from the start of the session's next prompt."""

    p_instance: str | None = Field(description="Prefill (or colocated) instance it returns to")
    d_instance: str | None = Field(description="Decode (or colocated) instance it returns to")
    history_tokens: int = Field(description="The session's history in this model's tokens")
    history_exact: bool = Field(description="False: history_tokens is an estimate from bytes")
    p_warm_tokens: int = Field(description="Leading tokens that the prefill instance holds")
    d_warm_tokens: int = Field(description="Leading tokens that the decode instance holds")
    missing_tokens: int = Field(description="What a call would compute of the history now")
    age_s: float | None = Field(description="Since a call or a shadow segment last ended there")
    shadow_tokens_computed: int
    shadow_tokens_used: int = Field(description="Found by calls, and there only by shadow work")
    shadow_tokens_pending: int = Field(description="Not used yet, but of use to the next call")
    shadow_tokens_wasted: int = Field(description="Computed, and of no use any more")
    shadow_state: ShadowState
    switch_probability: float = Field(description="That the next call goes here, when last asked")


class SessionRow(Shape):
    session_id: str
    tenant: str = Field(description="The tenant's id")
    kind: str = Field(description="chat, text, responses or messages: of its first call")
    is_named: bool = Field(description="False: recognised by the history that a call extends")
    model: str | None = Field(description="Model of the last call")
    calls: int
    active_calls: int = Field(description="Running now")
    switches: int
    shadow_enabled: bool
    idle_s: float = Field(description="Since a call last began or ended")
    models: dict[str, ModelWarmth]


class SessionList(Shape):
    object: Literal["list"] = "list"
    data: list[SessionRow] = Field(description="The most recently used first")
    total: int
    offset: int
    limit: int


class CallRow(Shape):
    call: int
    model: str
    is_switch: bool
    prompt_tokens: int | None
    cached_tokens: int | None
    shadow_tokens: int = Field(description="Of these, put there by a shadow")
    output_tokens: int | None
    ttft_ms: float | None
    e2el_ms: float | None
    p_instance: str | None
    d_instance: str | None
    p_leg_ms: float | None = Field(description="P leg that handed over; null: D computed it all")
    p_queue_ms: float | None = Field(
        description="Of it, before its first iteration; only with enable_per_request_metrics"
    )
    d_leg_ms: float | None = Field(description="D leg of a stream until its first byte")
    finish_reason: str | None
    error: str | None
    age_s: float | None = Field(description="Since the call arrived")


class ShadowRow(Shape):
    """What the shadow job of one model has done for a session."""

    state: ShadowState
    covered_tokens: int
    missing_tokens: int
    computed_tokens: int
    used_tokens: int
    pushed_tokens: int
    segments: int
    superseded: int
    failed: int
    switch_probability: float


class ShadowWorkRow(Shape):
    """One segment that a prefill instance computed, or one push that a decode instance pulled."""

    kind: ShadowWorkKind
    model: str
    age_s: float = Field(description="Since it began")
    took_s: float | None = Field(description="null: it runs")
    end_tokens: int = Field(description="How far into the prompt it reaches")
    tokens: int = Field(description="Computed by a segment, moved by a push")
    outcome: str = Field(description="running, done, stopped, or why it was lost")


class SessionDetail(Shape):
    session_id: str
    model: str | None
    summary: SessionRow
    calls: list[CallRow] = Field(description="The last thousand at most")
    shadows: dict[str, ShadowRow]
    shadow_work: list[ShadowWorkRow] = Field(
        description="The last 200 at most, of this coordinator"
    )
    shadow_tokens_computed: int
    shadow_tokens_used: int
    shadow_tokens_wasted: int


class ModelQuote(Shape):
    """The session's next call on one model, if it came now."""

    model: str
    is_current: bool = Field(description="The last call was here: no switch")
    available: bool
    why_not: str | None
    p_instance: str | None
    d_instance: str | None
    prompt_tokens: int = Field(description="The history, and new_tokens")
    prompt_exact: bool = Field(description="False: the history's length is an estimate")
    cached_tokens: int
    uncached_tokens: int
    transfer_tokens: int = Field(description="What the decode instance would pull")
    estimated_ttft_ms: float | None = Field(
        description="Queue (in coarse steps), prefill, hand-off"
    )
    input_price: float | None = Field(description="With cached input at its share; null: no price")


class SessionQuote(Shape):
    session_id: str
    model: str | None = Field(description="Model of the last call")
    quotes: list[ModelQuote] = Field(description="In the order of the configuration")


class Hint(Shape):
    """What comes next, by a router's scores or by an agent's plan: one of the two."""

    probabilities: dict[str, Annotated[float, Field(ge=0, le=1)]] | None = Field(
        default=None, description="Of the next model; those left out share the rest"
    )
    plan: list[str] | None = Field(
        default=None, max_length=64, description="Models of the next calls, in order"
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Hint:
        if bool(self.probabilities) == bool(self.plan):
            raise ValueError("must have either probabilities or a plan, and not both")
        total = sum((self.probabilities or {}).values())
        if total > 1 + PROBABILITY_TOLERANCE:
            raise ValueError(f"probabilities must sum to at most 1, got {total:g}")
        return self


class HintTarget(Shape):
    model: str
    probability: float


class HintAnswer(Shape):
    session_id: str
    targets: list[HintTarget] = Field(description="Models that are kept warm now, likeliest first")


class Finished(Shape):
    session_id: str
    calls: int
    finished: Literal[True] = True


class KeyUsageRow(Shape):
    tenant: str
    tenant_name: str
    key: str = Field(description="Name of the key; without configured keys the tenant")
    calls: int
    unfinished_calls: int = Field(description="Of these, failed, refused by an engine or left")
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    shadow_tokens_used: int
    saved_prefill_s: float = Field(description="What computing those would have taken (estimate)")
    saved_input_price: float


class TenantShadow(Shape):
    computed_tokens: int
    used_tokens: int
    quota_left_tokens: int | None = Field(description="null: no quota; below 0 it is overdrawn")


class UsageAnswer(Shape):
    keys: list[KeyUsageRow]
    shadow_by_tenant: dict[str, TenantShadow]


class InstanceRow(Shape):
    name: str
    model: str
    role: Role
    url: str
    metrics_url: str | None = Field(description="Series of the scheduler in the engine")
    healthy: bool
    state: Literal["healthy", "suspect", "unhealthy", "draining", "drained"] = Field(
        description="suspect: let a call time out; others are preferred for a while"
    )
    registered: bool = Field(description="While it runs; the configuration does not know it")
    last_error: str | None
    silent_probes: int = Field(description="Health probes in a row without an answer")
    failures: int = Field(description="Legs that failed there in a row")
    inflight_calls: int = Field(description="Legs running there, as far as this coordinator knows")
    inflight_tokens: int = Field(description="Uncached prompt tokens of them (estimate)")
    handoff_s: float | None = Field(description="From a hand-off to D's first byte, running mean")


class NewInstance(Shape):
    """An engine that runs already, to take calls from now on."""

    name: str
    model: str
    role: Role
    url: str = Field(description="http(s)://host:port, among coordinator.upstreams")
    kv_port: int | None = Field(default=None, description="NIXL side channel; prefill and decode")
    metrics_port: int | None = None


class Drain(Shape):
    draining: bool = Field(default=True, description="false: it takes calls again")
    force: bool = Field(default=False, description="Also if its model cannot do without it")


class InstanceList(Shape):
    object: Literal["list"] = "list"
    data: list[InstanceRow]


class ModelSummary(Shape):
    ready: bool
    why_not: str | None
    is_disaggregated: bool
    shadow: bool = Field(description="Whether it is a target of shadow jobs")
    max_model_len: int
    instances: int
    healthy_instances: int


class ShadowSummary(Shape):
    """Totals of all sessions since the start, the forgotten ones included."""

    computed_tokens: int
    used_tokens: int
    pushed_tokens: int
    segments: int
    jobs: int
    running: int = Field(description="Renders, segments and pushes running now")


class ClusterSummary(Shape):
    version: str
    profile: str
    controller: Controller
    uptime_s: float
    ready: bool
    models: dict[str, ModelSummary]
    instances: int
    healthy_instances: int
    sessions: int
    calls_in_flight: int
    shadow: ShadowSummary


class ConfigInForce(Shape):
    shadow: ShadowConfig = Field(description="As changed since the start")
    shadow_off: list[str] = Field(description="Models that are no targets of shadow jobs for now")
    cluster: dict[str, Any] = Field(description="The whole configuration, secrets masked")


class ShadowChange(Shape):
    changes: dict[str, float | int | str] = Field(
        default_factory=dict, description="Fields of the section `shadow`: all of them or none"
    )
    models: dict[str, bool] = Field(
        default_factory=dict, description="Whether a model is a target of shadow jobs"
    )

    @model_validator(mode="after")
    def _not_empty(self) -> ShadowChange:
        if not self.changes and not self.models:
            raise ValueError("must have changes, models or both")
        return self


class EngineAnswer(Shape):
    instance: str
    applied: bool
    text: str


class ShadowChanged(Shape):
    shadow: ShadowConfig = Field(description="In force from now on")
    shadow_off: list[str]
    engines: list[EngineAnswer] = Field(description="What each engine made of its part")
