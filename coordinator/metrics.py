"""The coordinator's own Prometheus series, in seconds and tokens. One registry per application."""

from __future__ import annotations

from dataclasses import fields
from enum import StrEnum
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coordinator.calls import CallContext
    from coordinator.shadow_counters import ShadowCounters

_TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0)


class Outcome(StrEnum):
    """How a call ended (metric label)."""

    OK = "ok"
    REJECTED = "rejected"  # an engine's 4xx
    FAILED = "failed"
    CANCELLED = "cancelled"  # the client went away


class Leg(StrEnum):
    """Which half of a call (metric label)."""

    PREFILL = "prefill"
    DECODE = "decode"


class Metrics:
    """Counts in plain numbers, which become series when somebody looks: `inc()` takes a lock, and a
    call counts six things."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._calls = self._counter("calls", "Calls that ended", "model", "class", "outcome")
        self._ttft = Histogram(
            "shadowprefill_ttft_seconds",
            "From a streamed call's arrival to its first byte out",
            ["model", "class", "switch"],
            buckets=_TTFT_BUCKETS_S,
            registry=self.registry,
        )
        self._prompt = self._counter("prompt_tokens", "Prompt tokens of finished calls", "model")
        self._cached = self._counter("cached_tokens", "Of these, found in a prefix cache", "model")
        self._used = self._counter("shadow_tokens_used", "Of these, put there by a shadow", "model")
        self._placements = self._counter("placements", "Placed calls", "model", "leg", "reason")
        self._legs = self._counter("legs_failed", "Legs that failed", "instance", "leg", "error")
        self._retried = self._counter("legs_retried", "Legs placed again after one failed", "leg")
        self._unbudgeted = self._counter(
            "retries_refused", "Legs not placed again: no budget left", "leg"
        )
        self._one_engine = self._counter(
            "calls_one_engine",
            "Calls whose prompt D computes, because legs apart would answer otherwise",
            "model",
            "kind",
        )
        self._refused = self._counter("calls_refused", "Calls refused at the door", "status")
        self._hints = self._counter("hints", "Hints that a call came after, by what it did", "end")
        self.router_failures = self._counter("router_failures", "Calls that a router failed")
        self.calls_not_logged = self._counter(
            "calls_not_logged", "Calls that the call log had no room for"
        )
        self.handoffs_returned = self._counter(
            "handoffs_returned", "Given back to P because their client left before a D had them"
        )
        self._in_flight = Gauge(
            "shadowprefill_calls_in_flight", "Calls running now", registry=self.registry
        )
        self.calls_in_flight = 0
        self.shadow_tokens_used = 0
        self._counted: dict[tuple[Counter, tuple[str, ...]], float] = {}
        """Since the last exposition."""
        self._ttft_children: dict[tuple[str, ...], Histogram] = {}

    def call_ended(self, call: CallContext, outcome: Outcome, used_tokens: int) -> None:
        self._add(self._calls, 1, call.model, call.request_class, outcome)
        if call.prompt_tokens is not None:
            self._add(self._prompt, call.prompt_tokens, call.model)
            self._add(self._cached, call.cached_tokens or 0, call.model)
            self._add(self._used, used_tokens, call.model)
            self.shadow_tokens_used += used_tokens

    def first_byte(self, call: CallContext, ttft_s: float) -> None:
        key = (call.model, call.request_class, "yes" if call.is_switch else "no")
        child = self._ttft_children.get(key)
        if child is None:
            child = self._ttft_children[key] = self._ttft.labels(*key)
        child.observe(ttft_s)

    def placed(self, model: str, leg: Leg, reason: str) -> None:
        self._add(self._placements, 1, model, leg, reason)

    def leg_failed(self, instance: str, leg: Leg, error: Exception) -> None:
        self._add(self._legs, 1, instance, leg, type(error).__name__)

    def leg_retried(self, leg: Leg) -> None:
        self._add(self._retried, 1, leg)

    def needed_one_engine(self, model: str, kind: str) -> None:
        self._add(self._one_engine, 1, model, kind)

    def retry_refused(self, leg: Leg) -> None:
        self._add(self._unbudgeted, 1, leg)

    def hint_ended(self, end: str) -> None:
        self._add(self._hints, 1, end)

    def refused(self, status: int) -> None:
        self._add(self._refused, 1, str(status))

    def exposition(self) -> bytes:
        counted, self._counted = self._counted, {}
        for (counter, labels), amount in counted.items():
            counter.labels(*labels).inc(amount)
        self._in_flight.set(self.calls_in_flight)
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"shadowprefill_{name}", text, labels, registry=self.registry)

    def _add(self, counter: Counter, amount: float, *labels: str) -> None:
        key = (counter, labels)
        self._counted[key] = self._counted.get(key, 0) + amount


class ShadowCollector(Collector):
    """The shadow flow counts in plain numbers; they become series when somebody looks."""

    def __init__(self, counters: ShadowCounters) -> None:
        self._counters = counters

    def collect(self) -> Iterable[CounterMetricFamily]:
        for field in fields(self._counters):
            value = getattr(self._counters, field.name)
            name = f"shadowprefill_shadow_{field.name.removesuffix('_s')}"
            name += "_seconds" if field.name.endswith("_s") else ""
            if isinstance(value, dict):
                family = CounterMetricFamily(name, "By reason", labels=["reason"])
                for reason, count in value.items():
                    family.add_metric([str(reason)], count)
            else:
                family = CounterMetricFamily(name, "Since the start", value=value)
            yield family
