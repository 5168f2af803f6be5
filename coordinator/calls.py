"""What one call is while it runs, and the hooks through which the shadow flow watches it.

Pure data: no I/O. Hosts: coordinator.pd_flow fills it, coordinator.shadow_flow reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from coordinator.shadow_counters import ShadowCounters

if TYPE_CHECKING:
    from collections.abc import Collection

    import msgspec

    from configs.schema import ShadowConfig
    from coordinator.clients import Client
    from coordinator.sessions import CallRecord, Session
    from coordinator.slo import CallSlo
    from policy.switching import SwitchTarget
    from policy.vocabulary import RequestClass


class CallKind(StrEnum):
    """Which endpoint a call came through; a session has one kind for life."""

    CHAT = "chat"
    TEXT = "text"

    @property
    def path(self) -> str:
        """The engine's endpoint of this kind."""
        return "/v1/chat/completions" if self is CallKind.CHAT else "/v1/completions"

    def engine_id(self, request_id: str) -> str:
        """What vLLM makes of a body's `request_id`."""
        return f"chatcmpl-{request_id}" if self is CallKind.CHAT else f"cmpl-{request_id}-0"


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
    record: CallRecord = field(init=False, repr=False)
    """The session's row of this call."""

    @property
    def is_switch(self) -> bool:
        return self.previous_model is not None and self.previous_model != self.model

    @property
    def messages_raw(self) -> bytes | None:
        return self._raw("messages")

    @property
    def tools_raw(self) -> bytes | None:
        return self._raw("tools")

    @property
    def prompt_raw(self) -> bytes | None:
        return self._raw("prompt")

    def _raw(self, name: str) -> bytes | None:
        value = self.body_fields.get(name)
        return None if value is None else bytes(value)


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
