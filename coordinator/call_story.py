"""One call from the door to its end, for those who tell of it: a line of JSON, and a trace.

A call that is refused before it has a session or a model has a story too. Nothing that a client
wrote is told but names: no prompt, no answer, no key, no error text (an engine's may quote the
prompt). Host: coordinator.openai_api."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from coordinator.errors import CallError
from coordinator.pd_flow import outcome_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from coordinator.call_trace import CallTrace, Tracing
    from coordinator.calls import CallKind
    from coordinator.clients import Client
    from coordinator.legs import Job

_log = logging.getLogger(__name__)


class CallStory:
    """A context manager: what leaves its block is how the call ended."""

    __slots__ = ("_stories", "client", "error", "job", "kind", "request_id", "trace")

    def __init__(
        self, kind: CallKind, request_id: str, trace: CallTrace, stories: CallStories
    ) -> None:
        self.kind = kind
        self.request_id = request_id
        self.trace = trace
        self.client: Client | None = None
        self.job: Job | None = None
        """None: it was refused before it began."""
        self.error: BaseException | None = None
        self._stories = stories

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.error = error
        self._stories.ended(self)

    @property
    def outcome(self) -> str:
        if self.job is None and isinstance(self.error, CallError):
            return "refused"
        return outcome_of(self.error).value

    @property
    def status(self) -> int | None:
        """None: the client left, or the server stopped, before there was one."""
        if self.error is None:
            return 200
        if isinstance(self.error, asyncio.CancelledError):
            return None
        return self.error.status if isinstance(self.error, CallError) else 500

    def fields(self) -> dict[str, Any]:
        """What is told of it; what is not known is left out."""
        told: dict[str, Any] = {"request_id": self.request_id, "kind": self.kind.value}
        if self.client is not None:
            told |= {"tenant": self.client.tenant, "key": self.client.key}
        if self.job is not None:
            told |= _of_job(self.job)
        told |= {"outcome": self.outcome, "status": self.status}
        if self.error is not None:
            told["error"] = getattr(self.error, "code", None) or type(self.error).__name__
        return {name: value for name, value in told.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStories:
    tracing: Tracing
    is_logged: bool
    _ids: Iterator[str] = field(init=False, default_factory=lambda: _request_ids())

    def begin(self, kind: CallKind, headers: Mapping[bytes, bytes]) -> CallStory:
        return CallStory(kind, next(self._ids), self.tracing.begin(headers), self)

    def ended(self, story: CallStory) -> None:
        story.trace.ended(story)
        if self.is_logged:
            _log.info("call", extra={"fields": story.fields()})


def _of_job(job: Job) -> dict[str, Any]:
    call, record = job.call, job.call.record
    return {
        "session_id": job.session.id or None,
        "model": call.model,
        "call": call.number,
        "is_switch": call.is_switch,
        "stream": call.stream,
        "request_class": call.request_class.value,
        "p_instance": record.p_instance,
        "d_instance": record.d_instance,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "shadow_tokens": record.shadow_tokens,
        "output_tokens": record.output_tokens,
        "ttft_ms": record.ttft_ms,
        "e2el_ms": record.e2el_ms,
        "p_leg_ms": record.p_leg_ms,
        "d_leg_ms": record.d_leg_ms,
        "finish_reason": record.finish_reason,
    }


def _request_ids() -> Iterator[str]:
    """Unlike those of every other coordinator."""
    prefix = secrets.token_hex(6)
    return (f"{prefix}-{number}" for number in itertools.count())
