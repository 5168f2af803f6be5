"""Spans of one call, for whoever collects them: the port, and the one that collects nothing.

The flows say what they do; what becomes of it is for coordinator.otel. Where nothing is traced
(by default, or because the call was not sampled) a step costs two calls of empty methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from coordinator.call_story import CallStory

Link = Any
"""What a span can be pointed to from another trace; of the tracer's own type, None: nothing."""


class Step(Protocol):
    """A part of a call, while its block runs. An exception ends it as failed."""

    link: Link
    traceparent: str
    """W3C; empty: this call is not traced."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def set(self, name: str, value: str | int | float) -> None: ...


class CallTrace(Protocol):
    """Of one call, or of the shadow work that one call gave rise to."""

    def step(self, name: str, instance: str = "") -> Step:
        """A child span."""

    def aside(self, name: str, model: str, instance: str = "") -> Step:
        """A span of its own trace, linked to the call: shadow work outlives it."""

    def event(self, name: str) -> None: ...

    def uses(self, link: Link) -> None:
        """The call found what that shadow work had left."""

    def ended(self, story: CallStory) -> None: ...


class Tracing(Protocol):
    def begin(self, headers: Mapping[bytes, bytes]) -> CallTrace: ...

    def close(self) -> None:
        """What was not sent yet is sent, or given up soon."""


class _NoStep:
    link: Link = None
    traceparent = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def set(self, name: str, value: str | int | float) -> None: ...


class _NoTrace:
    def step(self, name: str, instance: str = "") -> Step:
        return _NO_STEP

    def aside(self, name: str, model: str, instance: str = "") -> Step:
        return _NO_STEP

    def event(self, name: str) -> None: ...

    def uses(self, link: Link) -> None: ...

    def ended(self, story: CallStory) -> None: ...


class NoTracing:
    def begin(self, headers: Mapping[bytes, bytes]) -> CallTrace:
        return NO_TRACE

    def close(self) -> None: ...


_NO_STEP: Final = _NoStep()
NO_TRACE: Final[CallTrace] = _NoTrace()
