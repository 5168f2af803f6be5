"""What the coordinator remembers of an agent session: its calls, and how warm each model is.

Data only (serialisable, for a shared store): running tasks and buffers belong to the flows, keyed
by `Session.key`. Writers: coordinator.pd_flow (records, own tokens), coordinator.shadow_flow
(shadow tokens)."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from coordinator.calls import CallKind  # noqa: TC001  msgspec resolves it when it decodes

if TYPE_CHECKING:
    from collections.abc import Mapping

KEPT_CALLS = 1000
"""Call records that a session keeps; older ones are only counted."""
KEPT_SHADOW_RECORDS = 200
"""Likewise of shadow work. Each coordinator has those of its own work only."""


class ShadowState(StrEnum):
    """What the shadow job of one (session, model) is doing."""

    IDLE = "idle"
    RENDERING = "rendering"
    RUNNING = "running"
    PUSHING = "pushing"


class ShadowWorkKind(StrEnum):
    """What a ShadowRecord is about."""

    SEGMENT = "segment"
    PUSH = "push"


class CallRecord(msgspec.Struct, kw_only=True):
    """One row of `GET /v1/sessions/{id}`."""

    call: int
    model: str
    is_switch: bool
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    shadow_tokens: int = 0
    output_tokens: int | None = None
    ttft_ms: float | None = None
    e2el_ms: float | None = None
    p_instance: str | None = None
    d_instance: str | None = None
    p_leg_ms: float | None = None
    """Of the P leg that handed over; None: D computed the prompt."""
    p_queue_ms: float | None = None
    """Of it, before its first iteration; None: the engine does not tell."""
    d_leg_ms: float | None = None
    """Of a stream's D leg, until its first byte."""
    finish_reason: str | None = None
    error: str | None = None
    started_s: float = 0.0
    """Clock of the store."""


class ShadowRecord(msgspec.Struct, kw_only=True):
    """One segment or push of a shadow job."""

    kind: ShadowWorkKind
    model: str
    started_s: float
    """Clock of the store."""
    took_s: float | None = None
    """None: it runs."""
    end_tokens: int
    """How far into the prompt it reaches."""
    tokens: int = 0
    """Computed by a segment, moved by a push."""
    outcome: str


class Warmth(msgspec.Struct, kw_only=True, eq=False):
    """How much of a session's next prompt one model's sticky instances hold, as far as we know.

    pd_flow writes the call part, shadow_flow the shadow part, except that pd_flow resets
    `shadow_tokens` to 0 when a call of the model has ended: its own prefix covers it then."""

    touched_s: float = 0.0
    """When a call or a segment last ended there (clock of the store); 0: none did."""

    prefill_instance: str | None = None
    decode_instance: str | None = None
    own_tokens: int = 0
    """Prompt and output of the last call there, as the prefix cache may hold them."""
    decode_tokens: int = 0
    """Leading tokens that D holds, where P and D are apart: of the last call and of pushes."""
    decode_own_tokens: int = 0
    """Of these, what the last call left there."""

    shadow_tokens: int = 0
    """End of the finished shadow prefix (counted from the start of the prompt); 0: none."""
    running_tokens: int = 0
    """End of the segment in flight; 0: none."""
    stopped_tokens: int = 0
    """End of a segment that was stopped on its way; how much of it was computed shows at the next
    look at the engine's cache. 0: none."""
    covered_tokens: int = 0
    missing_tokens: int = 0
    rendered_call: int = 0
    """Number of the call up to which the sum of these two is the history's exact length."""
    computed_tokens: int = 0
    used_tokens: int = 0
    pushed_tokens: int = 0
    segments: int = 0
    superseded: int = 0
    failed: int = 0
    switch_probability: float = 0.0
    state: ShadowState = ShadowState.IDLE

    @property
    def warm_tokens(self) -> int:
        """Leading tokens of the next prompt that are believed to be held."""
        return max(self.own_tokens, self.shadow_tokens)

    @property
    def pending_tokens(self) -> int:
        """Computed by shadow work, not used yet, and still of use to the next call."""
        unused_tokens = self.computed_tokens - self.used_tokens
        return max(0, min(self.shadow_tokens - self.own_tokens, unused_tokens))

    @property
    def wasted_tokens(self) -> int:
        """Computed by shadow work and of no use any more."""
        return max(0, self.computed_tokens - self.used_tokens - self.pending_tokens)


_COLD = Warmth()


class Session(msgspec.Struct, kw_only=True, eq=False, weakref=True):
    """One agent task of one tenant."""

    id: str
    tenant: str
    kind: CallKind
    identified: bool
    """The client named the session; False: found by the history that a call extends."""
    current_model: str | None = None
    """Model of the last call."""
    shadow_enabled: bool = True
    switches: int = 0
    calls_total: int = 0
    active_calls: int = 0
    """Calls running now; a session with one is not a candidate for history matching."""
    calls: list[CallRecord] = msgspec.field(default_factory=list)
    """The last KEPT_CALLS; `record` keeps it so."""
    shadow_records: list[ShadowRecord] = msgspec.field(default_factory=list)
    """The last KEPT_SHADOW_RECORDS; `record_shadow` keeps it so."""
    warmth: dict[str, Warmth] = msgspec.field(default_factory=dict)
    """Per model key; `warmth_of` creates the entry."""
    history_digest: bytes = b""
    """Digest over the messages of the last call; how an unnamed session is found again."""
    hint_scores: dict[str, float] = msgspec.field(default_factory=dict)
    """What a router said about the next call (policy.hints); it ends with that call."""
    hint_plan: list[str] = msgspec.field(default_factory=list)
    """Models of the next calls, by the agent's own plan."""
    task_kind: str = ""
    """As the client names it; switches are learned per kind."""
    history_bytes: int = 0
    """Of the last call's prompt, and of its answer once it has ended (estimate)."""
    used_s: float = 0.0
    """When the last call began or ended (clock of the store)."""

    @property
    def key(self) -> tuple[str, str]:
        return (self.tenant, self.id)

    @property
    def mark_id(self) -> str:
        """How this session is named on marks: the plug-in releases the shadow of a session whose
        own call arrives, and sessions of two tenants may share an id."""
        return f"{self.tenant[:8]}:{self.id}" if self.id else ""

    @property
    def cache_salt(self) -> str:
        return cache_salt_of(self.tenant)

    def record(self, call: CallRecord) -> None:
        self.calls.append(call)
        if len(self.calls) > KEPT_CALLS:
            del self.calls[0]

    def record_shadow(self, record: ShadowRecord) -> None:
        self.shadow_records.append(record)
        if len(self.shadow_records) > KEPT_SHADOW_RECORDS:
            del self.shadow_records[0]

    def hint(self, scores: dict[str, float], plan: list[str]) -> None:
        """Takes the place of every earlier one."""
        self.hint_scores, self.hint_plan = scores, plan

    def expect(self, probabilities: Mapping[str, float]) -> None:
        """What our own router says about the call after this one. An agent's plan knows better."""
        if probabilities and not self.hint_plan:
            self.hint(dict(probabilities), [])

    def known_tokens(self, model: str) -> int | None:
        """Exact length of the next prompt on this model without what is new in it, if known."""
        last = self.calls[-1] if self.calls else None
        if last is not None and last.model == model and last.prompt_tokens is not None:
            return last.prompt_tokens + (last.output_tokens or 0)
        warmth = self.peek(model)
        if warmth.rendered_call and warmth.rendered_call == self.calls_total:
            return warmth.covered_tokens + warmth.missing_tokens
        return None

    def peek(self, model: str) -> Warmth:
        """For reading only: a model that the session never saw shares one cold entry."""
        return self.warmth.get(model, _COLD)

    def warmth_of(self, model: str) -> Warmth:
        warmth = self.warmth.get(model)
        if warmth is None:
            warmth = self.warmth[model] = Warmth()
        return warmth


@lru_cache(maxsize=4096)
def cache_salt_of(tenant: str) -> str:
    """One salt per tenant: tenants never share or probe each other's cache."""
    return sha256(f"shadowprefill:{tenant}".encode()).hexdigest()
