"""What a scrape of one engine shows; without vLLM."""

from __future__ import annotations

import urllib.request
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from engine.counts import Behind, Buckets, EngineCounts
from engine.exporter import EngineCollector, Exporter
from engine.params import EngineParamsInvalid
from tests.engine.readings import a_reading
from tests.free_ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.exporter import Reading

OWN = {"model": "tiny-a", "instance": "test"}


def scraped(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """By name and the labels that are not the engine's own."""
    values = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert OWN.items() <= sample.labels.items(), sample
            labels = frozenset(sample.labels.items() - OWN.items())
            values[sample.name.removeprefix("shadowprefill_engine_"), labels] = sample.value
    return values


def scrape(read: Callable[[], Reading]) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    registry = CollectorRegistry()
    registry.register(EngineCollector(read))
    return scraped(generate_latest(registry).decode())


def labelled(**labels: str) -> frozenset[tuple[str, str]]:
    return frozenset(labels.items())


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("grants_total", {"reason": "granted"}, 7),
        ("grants_total", {"reason": "no_slack"}, 2),
        ("jobs_ended_total", {"end": "superseded"}, 1),
        ("jobs_queued", {}, 1),
        ("missing_tokens", {}, 640),
        ("shadow_blocks", {"state": "cached"}, 30),
        ("shadow_blocks_cap", {}, 500),
        ("requests", {"state": "waiting"}, 2),
        ("kv_blocks", {"state": "normal_used"}, 258),
        ("kv_blocks", {"state": "normal_cached"}, 200),
        ("kv_blocks", {"state": "shadow_used"}, 12),
        ("kv_blocks", {"state": "shadow_cached"}, 30),
        ("kv_blocks", {"state": "empty"}, 500),
        ("evictions_total", {"class": "shadow"}, 4),
        ("credit_seconds", {}, -0.01),
        ("step_time_factor", {"term": "base"}, 1.5),
        ("step_time_factor", {"term": "reads"}, 2.0),
        ("controller_info", {"controller": "harvest-slo"}, 1),
        ("parameter", {"name": "kv_cap_share"}, 0.25),
        ("trace_on", {}, 0),
        ("host_tier_slots", {}, 100),
        ("host_tier_entries", {"class": "shadow"}, 10),
        ("host_tier_bytes_total", {"direction": "in"}, 80 * 4096),
        ("host_tier_bytes_total", {"direction": "out"}, 20 * 4096),
        ("host_tier_hits_total", {"outcome": "too_few_tokens"}, 1),
        ("host_tier_evictions_total", {"class": "shadow"}, 9),
        ("host_tier_promotions_total", {}, 5),
        ("host_tier_refused_blocks_total", {}, 3),
        ("host_tier_hurried_stores_total", {}, 4),
    ],
)
def test_a_scrape_shows_what_the_engine_knows(
    name: str, labels: dict[str, str], value: float
) -> None:
    assert scrape(a_reading)[name, labelled(**labels)] == value


def test_steps_and_waits_are_told_apart_by_the_shadow_tokens_beside_them() -> None:
    counts = EngineCounts(shadow_tokens=64)
    counts.shadow_step_s.add(0.04)
    counts.plain_step_s.add(0.02)
    counts.plain_step_s.add(60)
    counts.arrival_wait_s[Behind.SHADOW].add(0.03)
    counts.arrival_wait_s[Behind.SHADOW].add(0.01)
    values = scrape(lambda: a_reading(counts=counts))
    assert values["shadow_tokens_total", labelled()] == 64
    assert values["iterations_total", labelled(kind="shadow")] == 1
    assert values["iterations_total", labelled(kind="plain")] == 2
    assert values["step_seconds_bucket", labelled(kind="plain", le="0.02")] == 1
    assert values["step_seconds_bucket", labelled(kind="plain", le="5")] == 1
    assert values["step_seconds_bucket", labelled(kind="plain", le="+Inf")] == 2
    assert values["step_seconds_count", labelled(kind="plain")] == 2
    assert values["step_seconds_sum", labelled(kind="plain")] == 60.02
    assert values["arrival_wait_seconds_count", labelled(behind="shadow")] == 2
    assert values["arrival_wait_max_seconds", labelled(behind="shadow")] == 0.03
    assert values["arrival_wait_seconds_count", labelled(behind="foreground")] == 0


def test_an_instance_that_grants_nothing_shows_neither_iterations_nor_a_controllers_state() -> None:
    names = {name for name, _ in scrape(lambda: a_reading(controls=None, tier=None))}
    assert not any(name.startswith("host_tier") for name in names)
    assert not names & {"credit_seconds", "step_time_factor", "iterations_total", "grants_total"}
    assert {"pulls_total", "pull_timeouts_total", "jobs_ended_total"} <= names


def test_a_container_that_changes_during_the_scrape_is_read_again() -> None:
    attempts = 0

    def read() -> Reading:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise RuntimeError("dictionary changed size during iteration")
        return a_reading(grants=MappingProxyType({"granted": attempts}))

    assert scrape(read)["grants_total", labelled(reason="granted")] == 3


def test_it_serves_on_its_own_port_and_a_taken_one_is_a_clear_refusal() -> None:
    (port,) = free_ports(1)
    exporter = Exporter("127.0.0.1", port, a_reading)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            values = scraped(answer.read().decode())
        assert values["jobs_arrived_total", labelled()] == 5
        with pytest.raises(EngineParamsInvalid, match=f"metrics_port: 127.0.0.1:{port} cannot"):
            Exporter("127.0.0.1", port, a_reading)
    finally:
        exporter.close()


def test_buckets_hold_a_value_in_the_first_bound_that_is_not_below_it() -> None:
    buckets = Buckets((0.1, 0.2))
    for value in (0.05, 0.1, 0.15, 0.3):
        buckets.add(value)
    assert list(buckets.cumulative()) == [("0.1", 2), ("0.2", 3), ("+Inf", 4)]
    assert (buckets.largest, buckets.total) == (0.3, pytest.approx(0.6))
