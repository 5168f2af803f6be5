"""What one engine knows, as Prometheus series on a port of the EngineCore process.

Numbers become series when somebody looks: a step only adds to plain counters (engine.counts). A
scrape runs in a thread of its own and reads them while they change; a value may be one step old.

Imports neither vLLM nor torch. Host: engine.visible."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.registry import Collector

from engine.control import CHANGEABLE
from engine.link_series import LinkReading, link_families
from engine.params import EngineParams, EngineParamsInvalid
from engine.series import Series

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from prometheus_client.core import Metric

    from engine.counts import EngineCounts
    from policy.kv_class import KvPool

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """The state of the controller, where there is one."""

    credit_s: float
    base_factor: float
    context_factor: float
    read_factor: float
    trusted_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TierReading:
    """Of the host tier, where there is one."""

    slots: int
    block_bytes: int
    """Of one worker."""
    entries: Mapping[str, int]
    """By KV class, as the evictions."""
    evictions: Mapping[str, int]
    promotions: int
    stored_blocks: int
    loaded_blocks: int
    refused_blocks: int
    hits: Mapping[str, int]
    hurried_stores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Everything that a scrape shows."""

    params: EngineParams
    counts: EngineCounts
    jobs_arrived: int
    jobs_ended: Mapping[str, int]
    """By the reason for which we ended them, and `finished`."""
    grants: Mapping[str, int]
    drops: int
    pulls: int
    pulls_timed_out: int
    requests: Mapping[str, int]
    """In the scheduler, by state."""
    queued_jobs: int
    missing_tokens: int
    blocks: Mapping[str, int]
    """KV blocks of the shadow class: held by unfinished requests, cached behind finished ones."""
    cap_blocks: int
    pool: KvPool
    evictions: Mapping[str, int] = field(default_factory=dict)
    """Of cached blocks, by KV class."""
    promotions: int = 0
    truncations: int = 0
    controls: Controls | None = None
    link: LinkReading | None = None
    """Of an instance that pulls."""
    tier: TierReading | None = None


class Exporter:
    """Serves until `close`."""

    def __init__(self, host: str, port: int, read: Callable[[], Reading]) -> None:
        """Raises EngineParamsInvalid if the address cannot be used."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(EngineCollector(read))
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise EngineParamsInvalid(
                f"metrics_port: {host}:{port} cannot be listened on: {error.strerror}"
            ) from None

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class EngineCollector(Collector):
    """Reads, and translates."""

    def __init__(self, read: Callable[[], Reading]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        return list(families(self._steady()))

    def describe(self) -> Iterable[Metric]:
        return []

    def _steady(self) -> Reading:
        for _ in range(_ATTEMPTS):
            try:
                return self._read()
            except RuntimeError:  # a container changed while it was walked
                continue
        return self._read()


def families(reading: Reading) -> Iterator[Metric]:
    series = Series(reading.params.model, reading.params.instance)
    if reading.controls is not None:  # else nobody tells of iterations: zeros would be untrue
        yield from _steps(series, reading)
    yield from _jobs(series, reading)
    if reading.link is not None:
        yield from link_families(series, reading.link)
    yield from _kv(series, reading)
    yield from _pool(series, reading.pool)
    if reading.tier is not None:
        yield from _tier(series, reading.tier)
    yield from _parameters(series, reading)


def _steps(series: Series, reading: Reading) -> Iterator[Metric]:
    counts = reading.counts
    kinds = {"shadow": counts.shadow_step_s, "plain": counts.plain_step_s}
    iterations = {kind: sum(steps.counts) for kind, steps in kinds.items()}
    yield series.counter(
        "iterations", "Iterations with and without shadow tokens", iterations, "kind"
    )
    yield series.counter("shadow_tokens", "Shadow tokens computed", counts.shadow_tokens)
    yield series.counter("grants", "Plans with a shadow job, by outcome", reading.grants, "reason")
    yield series.histogram("step_seconds", "Duration of an iteration", kinds, "kind")
    yield series.histogram("budget_seconds", "What a plan allowed", {"": counts.budget_s})
    yield series.histogram(
        "predicted_seconds", "What was expected of an iteration", {"": counts.predicted_s}
    )
    ratio = {"": counts.actual_over_predicted}
    yield series.histogram("prediction_ratio", "Actual over predicted duration", ratio)
    waits = {behind.value: wait for behind, wait in counts.arrival_wait_s.items()}
    text = "Wait of an arriving request for the iteration in progress"
    yield series.histogram("arrival_wait_seconds", text, waits, "behind")
    largest = {behind: wait.largest for behind, wait in waits.items()}
    yield series.gauge("arrival_wait_max_seconds", "The longest of them", largest, "behind")


def _pool(series: Series, pool: KvPool) -> Iterator[Metric]:
    blocks = {
        "normal_used": pool.used_normal_blocks,
        "normal_cached": pool.cached_normal_blocks,
        "shadow_used": pool.used_shadow_blocks,
        "shadow_cached": pool.cached_shadow_blocks,
        "empty": pool.uncached_blocks,
    }
    yield series.gauge("kv_blocks", "All KV blocks; each counts once", blocks, "state")


def _jobs(series: Series, reading: Reading) -> Iterator[Metric]:
    yield series.gauge("requests", "Requests in the scheduler", reading.requests, "state")
    yield series.counter("jobs_arrived", "Shadow requests that came in", reading.jobs_arrived)
    yield series.counter("jobs_ended", "Shadow requests by their end", reading.jobs_ended, "end")
    yield series.gauge("jobs_queued", "Shadow requests with work left", reading.queued_jobs)
    yield series.gauge("missing_tokens", "Shadow tokens not computed", reading.missing_tokens)
    yield series.counter("pulls", "Shadow KV pulled from a prefill instance", reading.pulls)
    yield series.counter("pull_timeouts", "Pulls given up", reading.pulls_timed_out)


def _kv(series: Series, reading: Reading) -> Iterator[Metric]:
    yield series.gauge("shadow_blocks", "KV blocks of the shadow class", reading.blocks, "state")
    yield series.gauge("shadow_blocks_cap", "Most of them", reading.cap_blocks)
    yield series.counter("drops", "Shadow requests that gave up their blocks", reading.drops)
    yield series.counter("evictions", "Cached blocks evicted", reading.evictions, "class")
    yield series.counter("promotions", "Shadow blocks that a call used", reading.promotions)
    yield series.counter("truncations", "Shadow jobs cut at the cap", reading.truncations)


def _tier(series: Series, tier: TierReading) -> Iterator[Metric]:
    copied_bytes = {
        "in": tier.stored_blocks * tier.block_bytes,
        "out": tier.loaded_blocks * tier.block_bytes,
    }
    yield series.gauge("host_tier_slots", "KV blocks that the host tier holds", tier.slots)
    yield series.gauge("host_tier_entries", "Slots in use", tier.entries, "class")
    yield series.counter("host_tier_bytes", "Copied, per worker", copied_bytes, "direction")
    yield series.counter("host_tier_hits", "Prefixes that go on there", tier.hits, "outcome")
    yield series.counter("host_tier_evictions", "Entries evicted", tier.evictions, "class")
    yield series.counter("host_tier_promotions", "Shadow entries used by a call", tier.promotions)
    yield series.counter("host_tier_refused_blocks", "Found no slot", tier.refused_blocks)
    yield series.counter(
        "host_tier_hurried_stores", "Copies that an eviction waited for", tier.hurried_stores
    )


def _parameters(series: Series, reading: Reading) -> Iterator[Metric]:
    params, counts = reading.params, reading.counts
    values = {name: getattr(params, name) for name in CHANGEABLE}
    numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
    yield series.gauge(
        "controller_info", "Which controller", {params.controller.value: 1}, "controller"
    )
    yield series.gauge("parameter", "What a control request can change", numbers, "name")
    changes = {"applied": counts.changes_applied, "refused": counts.changes_refused}
    yield series.counter("control_requests", "Requests to change them", changes, "result")
    yield series.gauge("trace_on", "Whether iterations are traced", int(bool(params.trace_path)))
    yield series.counter("trace_lines", "Lines written", counts.trace.lines)
    yield series.counter("trace_failures", "Traces that could not go on", counts.trace.failures)
    if reading.controls is None:
        return
    controls = reading.controls
    factors = {
        "base": controls.base_factor,
        "context": controls.context_factor,
        "reads": controls.read_factor,
    }
    yield series.gauge("credit_seconds", "Time that routed calls may lose", controls.credit_s)
    yield series.gauge("step_time_factor", "Correction of the start values", factors, "term")
    yield series.gauge("trusted_tokens", "Largest chunk that may be tried", controls.trusted_tokens)
