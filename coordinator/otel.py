"""Traces for OpenTelemetry: the one file that knows its SDK, which is an extra.

A client's `traceparent` makes our spans part of its trace; whether a call is sampled is decided
here alone, and nothing else of a client's is passed on. Engines get the `traceparent` of the leg
that asks them. Host: coordinator.app, for `coordinator.otlp_endpoint`."""

from __future__ import annotations

import os
import random
import re
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Self

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from coordinator.call_trace import NO_TRACE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, Tracer

    from coordinator.call_story import CallStory
    from coordinator.call_trace import CallTrace, Step

PROTOCOL_VARIABLE: Final = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
"""As vLLM reads it: `grpc` if unset, else `http/protobuf`."""
_TRACEPARENT: Final = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_CLOSE_S: Final = 2.0
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


class OtelTracing:
    """One per application."""

    def __init__(
        self,
        exporter: SpanExporter,
        sample_share: float,
        chance: Callable[[], float] = random.random,
        processor: Callable[[SpanExporter], Any] = BatchSpanProcessor,
    ) -> None:
        self._share = sample_share
        self._chance = chance
        resource = Resource.create({SERVICE_NAME: "shadowprefill-coordinator"})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor(exporter))
        self._tracer = self._provider.get_tracer("shadowprefill")

    def begin(self, headers: Mapping[bytes, bytes]) -> CallTrace:
        if self._chance() >= self._share:
            return NO_TRACE
        parent = _parent_of(headers.get(b"traceparent", b""))
        span = self._tracer.start_span("call", parent, SpanKind.SERVER)
        return _Trace(self._tracer, span)

    def close(self) -> None:
        # A collector that is gone would hold up the stop for as long as the exporter tries.
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(_CLOSE_S)


class _Trace:
    __slots__ = ("_inside", "_span", "_tracer")

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span
        self._inside = set_span_in_context(span, Context())

    def step(self, name: str, instance: str = "") -> Step:
        kind = SpanKind.CLIENT if instance else SpanKind.INTERNAL
        attributes = {"shadowprefill.instance": instance} if instance else {}
        return _Step(self._tracer.start_span(name, self._inside, kind, attributes))

    def aside(self, name: str, model: str, instance: str = "") -> Step:
        attributes = {"gen_ai.request.model": model, "shadowprefill.instance": instance}
        links = [Link(self._span.get_span_context())]
        return _Step(self._tracer.start_span(name, Context(), SpanKind.CLIENT, attributes, links))

    def event(self, name: str) -> None:
        self._span.add_event(name)

    def uses(self, link: Any) -> None:
        if link is not None:
            self._span.add_link(link, {"shadowprefill.relation": "uses_shadow"})

    def ended(self, story: CallStory) -> None:
        told = story.fields()
        self._span.set_attributes({_NAMES.get(name, _own(name)): told[name] for name in told})
        if story.error is not None:
            self._span.set_status(Status(StatusCode.ERROR, told["error"]))
        self._span.end()


class _Step:
    __slots__ = ("_span", "link", "traceparent")

    def __init__(self, span: Span) -> None:
        self._span = span
        own = self.link = span.get_span_context()
        self.traceparent = f"00-{own.trace_id:032x}-{own.span_id:016x}-01"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            # Its name alone: what an engine says may quote the prompt.
            self._span.set_status(Status(StatusCode.ERROR, kind.__name__))
        self._span.end(time.time_ns())

    def set(self, name: str, value: str | int | float) -> None:
        self._span.set_attribute(_own(name), value)


_NAMES: Final = {
    "model": "gen_ai.request.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "session_id": "gen_ai.conversation.id",
    "status": "http.response.status_code",
    "error": "error.type",
}
"""Where OpenTelemetry has a name for it."""


def _own(name: str) -> str:
    return f"shadowprefill.{name}"


def _parent_of(traceparent: bytes) -> Context:
    """An empty one for none, and for what is none."""
    match = _TRACEPARENT.fullmatch(traceparent.strip())
    if match is None:
        return Context()
    trace_id, span_id = (int(part, 16) for part in match.groups())
    parent = SpanContext(trace_id, span_id, is_remote=True, trace_flags=_SAMPLED)
    return (
        set_span_in_context(NonRecordingSpan(parent), Context()) if parent.is_valid else Context()
    )


def exporter_to(endpoint: str) -> SpanExporter:
    """Speaks as the engines do, so that one endpoint serves both. Raises ValueError."""
    protocol = os.environ.get(PROTOCOL_VARIABLE, "grpc")
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as over_grpc

        is_plain = endpoint.startswith("http://")
        return over_grpc.OTLPSpanExporter(endpoint=endpoint, insecure=is_plain)
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http import trace_exporter as over_http

        return over_http.OTLPSpanExporter(endpoint=endpoint)
    raise ValueError(f"{PROTOCOL_VARIABLE} must be grpc or http/protobuf, got {protocol!r}")
