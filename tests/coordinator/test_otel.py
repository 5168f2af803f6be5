"""Traces of calls and of the shadow work that they give rise to, as a collector gets them."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

otel = pytest.importorskip("coordinator.otel", reason="the extra `otel` is not installed")
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import (  # noqa: E402
    InMemorySpanExporter,
)

from coordinator.app import create_app  # noqa: E402
from tests.coordinator.call_rig import (  # noqa: E402
    COLOCATED,
    PD,
    TWO_PD,
    a_chat,
    a_cluster,
    a_coordinator,
    a_turn,
    until,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

WORDS = " ".join(f"w{at}" for at in range(300))
THEIRS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


class Collected:
    """A tracing, and what came of it."""

    def __init__(self, share: float = 1.0, chance: float = 0.5) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracing = otel.OtelTracing(
            self._exporter, share, lambda: chance, processor=SimpleSpanProcessor
        )

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]


def id_of(span: ReadableSpan) -> int:
    return span.context.span_id


def traceparent_of(span: ReadableSpan) -> str:
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-01"


async def test_a_call_is_one_span_with_a_child_for_each_leg() -> None:
    collected = Collected()
    async with a_coordinator(PD, tracing=collected.tracing) as rig:
        reply = await rig.chat(a_chat(stream=True), x_session_id="s")
        assert reply.status_code == 200
    (call,) = collected.named("call")
    children = [span for span in collected.spans if span is not call]
    assert [span.name for span in children] == [
        *("route", "place", "prefill leg", "decode leg", "answer")
    ]
    assert all(span.parent and span.parent.span_id == id_of(call) for span in children)
    assert len({span.context.trace_id for span in collected.spans}) == 1
    assert [event.name for event in call.events] == ["first byte"]
    told = dict(call.attributes or {})
    assert (told["gen_ai.request.model"], told["gen_ai.conversation.id"]) == ("small", "s")
    assert told["gen_ai.usage.output_tokens"] == 4
    assert told["shadowprefill.p_instance"] == "small-p"
    assert told["http.response.status_code"] == 200
    assert call.parent is None
    assert call.status.is_unset


async def test_each_engine_is_given_the_span_of_its_own_leg() -> None:
    collected = Collected()
    async with a_coordinator(PD, tracing=collected.tracing) as rig:
        await rig.chat(a_chat())
        for name, instance in (("prefill leg", "small-p"), ("decode leg", "small-d")):
            (span,), (request,) = collected.named(name), rig.calls(instance)
            assert request.headers["traceparent"] == traceparent_of(span)
            assert dict(span.attributes or {})["shadowprefill.instance"] == instance


async def test_a_clients_trace_goes_on_in_ours_and_nothing_else_of_it_does() -> None:
    collected = Collected()
    async with a_coordinator(COLOCATED, tracing=collected.tracing) as rig:
        # Its flag says that it is not sampled: that is for us to decide.
        await rig.chat(a_chat(), traceparent=THEIRS, tracestate="a=b", baggage="c=d")
        (request,) = rig.all_calls()
    (call,) = collected.named("call")
    assert f"{call.context.trace_id:032x}" == THEIRS[3:35]
    assert call.parent is not None
    assert f"{call.parent.span_id:016x}" == THEIRS[36:52]
    assert request.headers["traceparent"] == traceparent_of(collected.named("decode leg")[0])
    assert not {"tracestate", "baggage"} & request.headers.keys()


@pytest.mark.parametrize(
    "header",
    [
        "",
        "garbage",
        THEIRS + "-and-more",
        THEIRS.upper(),
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
        "\xff" * 55,
    ],
)
def test_what_is_no_traceparent_begins_a_trace_of_its_own(header: str) -> None:
    collected = Collected()
    trace = collected.tracing.begin({b"traceparent": header.encode("latin-1")})
    trace._span.end()
    (call,) = collected.spans
    assert call.parent is None
    assert call.context.trace_id != int(THEIRS[3:35], 16)


@pytest.mark.parametrize("chance", [0.5, 0.9])
async def test_a_call_that_is_not_sampled_leaves_no_trace_anywhere(chance: float) -> None:
    collected = Collected(share=0.5, chance=chance)
    async with a_coordinator(PD, tracing=collected.tracing) as rig:
        await rig.chat(a_chat(), traceparent=THEIRS[:-2] + "01")
        assert collected.spans == []
        assert not any("traceparent" in request.headers for request in rig.all_calls())


async def test_without_an_endpoint_nothing_is_traced() -> None:
    async with a_coordinator(PD) as rig:
        await rig.chat(a_chat(), traceparent=THEIRS)
        assert not any("traceparent" in request.headers for request in rig.all_calls())


async def test_a_leg_that_failed_is_an_error_and_the_next_one_is_not() -> None:
    collected = Collected()
    layout = PD | {"small-p2": ("small", "prefill")}
    async with a_coordinator(layout, tracing=collected.tracing) as rig:
        for name in ("small-p", "small-p2"):
            rig.engines[name].faults.fail_next(500)
        assert (await rig.chat(a_chat("secret words"))).status_code == 200
    legs = collected.named("prefill leg")
    assert [leg.status.description for leg in legs] == ["EngineFailed"] * 2
    (decode,), (call,) = collected.named("decode leg"), collected.named("call")
    assert decode.status.is_unset
    assert call.status.is_unset


async def test_a_refused_call_has_a_span_too() -> None:
    collected = Collected()
    async with a_coordinator(COLOCATED, tracing=collected.tracing) as rig:
        assert (await rig.chat(a_chat(model="nope"))).status_code == 404
    (call,) = collected.named("call")
    assert call.status.description == "model_not_found"
    assert dict(call.attributes or {})["http.response.status_code"] == 404


async def test_shadow_work_is_linked_to_its_call_and_its_use_to_the_work() -> None:
    collected = Collected()
    async with a_coordinator(TWO_PD, shadow=True, tracing=collected.tracing) as rig:
        messages = a_turn(WORDS)
        reply = await rig.chat(a_chat(messages=messages), x_session_id="s")
        (session,), _ = await rig.app.state.sessions.page("anonymous", 0, 10)
        await until(lambda: session.warmth_of("large").shadow_tokens >= 288, "large is warm")
        await until(lambda: not rig.app.state.shadow.running, "nothing runs any more")
        messages += [reply.json()["choices"][0]["message"], {"role": "user", "content": "go on"}]
        await rig.chat(a_chat(messages=messages, model="large"), x_session_id="s")
        parents = {request.headers.get("traceparent") for request in rig.calls("large-p")}
    first, second = collected.named("call")
    for name in ("shadow render", "shadow segment", "shadow push"):
        span = collected.named(name)[0]
        assert [link.context.span_id for link in span.links] == [id_of(first)], name
        assert span.context.trace_id != first.context.trace_id
    segments = [
        span for span in collected.named("shadow segment") if span.links[0].context == first.context
    ]
    assert traceparent_of(segments[-1]) in parents
    assert [link.context.span_id for link in second.links] == [id_of(segments[-1])]
    assert not first.links


async def test_no_span_quotes_a_prompt_or_a_key() -> None:
    collected = Collected()
    async with a_coordinator(TWO_PD, shadow=True, tracing=collected.tracing) as rig:
        rig.engines["small-p"].faults.fail_next(500)
        headers = {"x_session_id": "s", "authorization": "Bearer sesame"}
        await rig.chat(a_chat("swordfish " * 50), **headers)
        await rig.chat(a_chat("swordfish", temperature="swordfish"), **headers)
        await until(lambda: not rig.app.state.shadow.running, "nothing runs any more")
    seen = "".join(span.to_json() for span in collected.spans)
    assert "small" in seen
    assert "sesame" not in seen
    assert "swordfish" not in seen


async def test_a_stop_does_not_wait_for_a_collector_that_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collected, never = Collected(), threading.Event()
    monkeypatch.setattr(otel, "_CLOSE_S", 0.01)
    monkeypatch.setattr(collected.tracing._provider, "shutdown", never.wait)
    async with a_coordinator(COLOCATED, tracing=collected.tracing, ready=False):
        pass
    never.set()


def a_config(**coordinator: Any) -> Any:
    return a_cluster({"a": ("small", "colocated", "http://127.0.0.1:1")}, coordinator)


def test_an_endpoint_without_the_extra_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "coordinator.otel", None)
    with pytest.raises(ValueError, match=r"coordinator\.otlp_endpoint needs the extra `otel`"):
        create_app(a_config(otlp_endpoint="http://127.0.0.1:4317"))


@pytest.mark.parametrize("protocol", [None, "grpc", "http/protobuf"])
def test_one_endpoint_serves_engines_and_coordinator(
    protocol: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if protocol is not None:
        monkeypatch.setenv(otel.PROTOCOL_VARIABLE, protocol)
    exporter = otel.exporter_to("http://127.0.0.1:4317")
    kind = "http" if protocol == "http/protobuf" else "grpc"
    assert f".{kind}." in type(exporter).__module__
    exporter.shutdown()


def test_an_unknown_protocol_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(otel.PROTOCOL_VARIABLE, "http/json")
    with pytest.raises(ValueError, match="must be grpc or http/protobuf, got 'http/json'"):
        create_app(a_config(otlp_endpoint="http://127.0.0.1:4317"))
