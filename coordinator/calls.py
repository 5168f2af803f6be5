"""What one call is while it runs, and the hooks through which the shadow flow watches it.

Pure data: no I/O. Hosts: coordinator.pd_flow fills it, coordinator.shadow_flow reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from coordinator.call_trace import NO_TRACE
from coordinator.shadow_counters import ShadowCounters

if TYPE_CHECKING:
    from collections.abc import Collection

    import msgspec

    from configs.schema import ShadowConfig
    from coordinator.call_trace import CallTrace
    from coordinator.clients import Client
    from coordinator.sessions import CallRecord, Session
    from coordinator.slo import CallSlo
    from policy.switching import SwitchTarget
    from policy.vocabulary import RequestClass


class CallKind(StrEnum):
    """Which endpoint a call came through; a session has one kind for life."""

    CHAT = "chat"
    TEXT = "text"
    RESPONSES = "responses"
    MESSAGES = "messages"

    @property
    def path(self) -> str:
        """The engine's endpoint of this kind."""
        return _PATHS[self]

    @property
    def prompt_field(self) -> str:
        """Where a body of this kind keeps what was said so far."""
        return _PROMPTS[self]

    @property
    def limit_field(self) -> str:
        """How a body of this kind limits its answer."""
        return "max_output_tokens" if self is CallKind.RESPONSES else "max_tokens"

    @property
    def names_in_head(self) -> bool:
        """Whether the engine knows a request by the header `x-request-id`: Anthropic's body has no
        field for it."""
        return self is CallKind.MESSAGES

    @property
    def begins_at_once(self) -> bool:
        """Whether a stream's first events come before the engine has computed anything."""
        return self is CallKind.RESPONSES

    def engine_id(self, request_id: str) -> str:
        """What vLLM makes of the `request_id` of a body or head."""
        return _ENGINE_IDS[self].format(request_id)


_PATHS: Final = {
    CallKind.CHAT: "/v1/chat/completions",
    CallKind.TEXT: "/v1/completions",
    CallKind.RESPONSES: "/v1/responses",
    CallKind.MESSAGES: "/v1/messages",
}
_PROMPTS: Final = {
    CallKind.CHAT: "messages",
    CallKind.TEXT: "prompt",
    CallKind.RESPONSES: "input",
    CallKind.MESSAGES: "messages",
}
_ENGINE_IDS: Final = {
    CallKind.CHAT: "chatcmpl-{}",
    CallKind.TEXT: "cmpl-{}-0",
    CallKind.RESPONSES: "{}_0",
    CallKind.MESSAGES: "chatcmpl-{}",
}


@dataclass(slots=True, kw_only=True, eq=False)
class CallContext:
    """One call. Raw fields are the client's own bytes, never re-serialised."""

    kind: CallKind
    number: int
    """1-based, within the session."""
    model: str
    """The model key that was chosen."""
    previous_model: str | None
    request_class: RequestClass
    slo: CallSlo = field(init=False, repr=False)
    """What the marks of its legs say."""
    stream: bool
    body_fields: dict[str, msgspec.Raw] = field(repr=False)
    """The client's top-level fields after stripping; without `model`."""
    started_s: float
    """Monotonic clock, when the body had arrived."""
    prompt_bytes: int = 0
    """Of everything that the prompt is made of."""
    prompt_tokens_estimate: int = 0
    """From bytes, until the engine's usage is known."""
    own_tokens_before: int = 0
    """What the chosen model held of this session from its own calls, when this one arrived."""
    shadow_tokens_before: int = 0
    """Where its shadow ended then, a segment included that was running or had been stopped."""
    finished_shadow_tokens_before: int = 0
    """Where its finished segments ended."""
    stopped_segment_tokens: int = 0
    """What unfinished segments turned out to have computed, once the call's hits are known."""
    is_decode_alone: bool = False
    """D computes the prompt: no P was asked, or none could serve."""
    prompt_tokens: int | None = None
    """The engine's exact numbers; set before `call_ended`, None if the call failed before."""
    cached_tokens: int | None = None
    output_tokens: int | None = None
    client: Client = field(init=False, repr=False)
    """Whose it is."""
    trace: CallTrace = field(default=NO_TRACE, repr=False)
    record: CallRecord = field(init=False, repr=False)
    """The session's row of this call."""

    @property
    def is_switch(self) -> bool:
        return self.previous_model is not None and self.previous_model != self.model

    @property
    def prompt_raw(self) -> bytes:
        """What was said so far, as the client wrote it."""
        return bytes(self.body_fields.get(self.kind.prompt_field, b""))


class ShadowHooks(Protocol):
    """Called on the hot path: synchronous, cheap (append bytes, set an event), never raising."""

    def call_started(self, session: Session, call: CallContext) -> None:
        """Before the prefill leg is sent. Supersedes a running shadow of the session on
        `call.model`: the switch never waits for it."""

    def output_bytes(self, session: Session, call: CallContext, chunk: bytes) -> None:
        """Raw SSE bytes, or the whole JSON body, as the engine sent them. Routed calls only."""

    def call_ended(self, session: Session, call: CallContext, ok: bool) -> None:
        """After the last byte, or after the call failed or was cancelled. The session's record
        and warmth of `call.model` are up to date by now."""

    def session_finished(self, session: Session) -> None:
        """The session is over or forgotten."""

    def hinted(self, session: Session) -> tuple[SwitchTarget, ...]:
        """The session has another hint: its jobs follow it at once. Gives their models."""

    def snapshot(self, session: Session) -> dict[str, dict[str, Any]]:
        """The `shadows` part of `GET /v1/sessions/{id}`."""

    def reconfigure(self, shadow: ShadowConfig, off: Collection[str]) -> None:
        """Other parameters, and models that are no targets any more, from the next call on; the
        parameters of running segments stay."""

    @property
    def counters(self) -> ShadowCounters: ...

    @property
    def running(self) -> int:
        """Renders, segments and pushes running now."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class NoShadow:
    """All shadow work is off."""

    def call_started(self, session: Session, call: CallContext) -> None: ...

    def output_bytes(self, session: Session, call: CallContext, chunk: bytes) -> None: ...

    def call_ended(self, session: Session, call: CallContext, ok: bool) -> None: ...

    def session_finished(self, session: Session) -> None: ...

    def hinted(self, session: Session) -> tuple[SwitchTarget, ...]:
        return ()

    def snapshot(self, session: Session) -> dict[str, dict[str, Any]]:
        return {}

    def reconfigure(self, shadow: ShadowConfig, off: Collection[str]) -> None: ...

    @property
    def counters(self) -> ShadowCounters:
        return ShadowCounters()

    @property
    def running(self) -> int:
        return 0

    async def start(self) -> None: ...

    async def stop(self) -> None: ...
