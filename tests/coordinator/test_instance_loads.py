"""How busy engines are, read from the series that they really export."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from coordinator import instance_loads
from coordinator.engine_series import load_in
from engine.counts import EngineCounts
from engine.exporter import EngineCollector, Exporter, Reading
from tests.coordinator.call_rig import TWO_PD, a_coordinator
from tests.engine.readings import a_link, a_reading
from tests.free_ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNTS = EngineCounts(shadow_tokens=640)
COUNTS.shadow_step_s.add(0.5)
COUNTS.plain_step_s.add(0.25)


PATIENT = {"connect_timeout_s": 30.0}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exporter's thread may wait long for a busy core."""
    monkeypatch.setattr(instance_loads, "TIMEOUT_S", 30.0)


def exposed(reading: Reading) -> str:
    registry = CollectorRegistry()
    registry.register(EngineCollector(lambda: reading))
    return generate_latest(registry).decode()


@contextmanager
def exporters(**readings: Reading) -> Iterator[dict[str, int]]:
    """By instance (with _ for -): the real exporter; gives the ports."""
    ports = free_ports(len(readings))
    with ExitStack() as stack:
        for port, reading in zip(ports, readings.values(), strict=True):
            exporter = Exporter("127.0.0.1", port, lambda reading=reading: reading)
            stack.callback(exporter.close)
        yield {name.replace("_", "-"): port for name, port in zip(readings, ports, strict=True)}


def test_what_an_engine_exports_is_read_whole() -> None:
    load = load_in("p", exposed(a_reading(counts=COUNTS)))
    assert (load.running_requests, load.waiting_requests) == (3, 2)
    assert (load.queued_jobs, load.missing_tokens) == (1, 640)
    assert load.kv is not None
    assert load.kv.model_dump() == {
        "total_blocks": 1000,
        "normal_used_blocks": 258,
        "normal_cached_blocks": 200,
        "shadow_used_blocks": 12,
        "shadow_cached_blocks": 30,
        "shadow_cap_blocks": 500,
    }
    assert load.slack is not None
    assert load.slack.model_dump() == {
        "shadow_tokens": 640,
        "shadow_iterations": 1,
        "plain_iterations": 1,
        "shadow_iteration_s": 0.5,
        "plain_iteration_s": 0.25,
        "credit_s": -0.01,
        "plans": {"granted": 7, "no_slack": 2},
    }
    assert load.link is None


def test_a_decode_instance_tells_of_its_link_and_of_no_slack() -> None:
    load = load_in("d", exposed(a_reading(controls=None, link=a_link())))
    assert load.slack is None
    assert load.link is not None
    assert load.link.normal.model_dump() == {
        "in_flight": 1,
        "in_flight_bytes": 4096,
        "arrived_bytes": 2_000_000,
        "busy_s": 0.5,
    }
    assert load.link.shadow.arrived_bytes == 1_000_000
    assert load.link.idle_s == 3.0


@pytest.mark.parametrize("text", ["", "vllm:num_requests_running 1\n", "<html>no</html>"])
def test_what_is_not_ours_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not the port of a ShadowPrefill engine"):
        load_in("p", text)


async def rows(rig: Any) -> dict[str, dict[str, Any]]:
    answer = (await rig.client.get("/v1/cluster/load")).json()
    return {row["name"]: row for row in answer["data"]}


async def test_every_instance_has_a_row_and_one_that_is_silent_says_why() -> None:
    (nobody,) = free_ports(1)
    with exporters(small_p=a_reading(), small_d=a_reading(link=a_link())) as ports:
        async with a_coordinator(
            TWO_PD, limits=PATIENT, metrics_ports=ports | {"large-p": nobody}
        ) as rig:
            loads = await rows(rig)
            assert list(loads) == list(TWO_PD)
            assert loads["small-p"]["why_not"] is None
            assert loads["small-p"]["running_requests"] == 3
            assert loads["small-d"]["link"]["shadow"]["arrived_bytes"] == 1_000_000
            assert str(nobody) in loads["large-p"]["why_not"]
            assert loads["large-p"]["kv"] is None
            assert loads["large-d"]["why_not"] == "no metrics_port is configured"


async def test_a_pair_between_which_no_kv_moves_is_named() -> None:
    async with a_coordinator(TWO_PD) as rig:
        cluster = rig.app.state.cluster
        for _ in range(2):
            cluster.not_pulled("small-p", cluster.instances["small-d"])
        assert (await rows(rig))["small-d"]["cut_off_from"] == ["small-p"]


async def test_many_lookers_ask_an_engine_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    monkeypatch.setattr(
        instance_loads, "load_in", lambda name, text: reads.append(name) or load_in(name, text)
    )
    monkeypatch.setattr(instance_loads, "FRESH_S", 1000.0)
    with exporters(small_p=a_reading()) as ports:
        async with a_coordinator(TWO_PD, limits=PATIENT, metrics_ports=ports) as rig:
            for _ in range(3):
                await rows(rig)
    assert reads == ["small-p"]
