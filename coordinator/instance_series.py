"""Who is well, as Prometheus series: read from the cluster when somebody scrapes.

Host: coordinator.parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.core import Metric

    from coordinator.health import Health
    from coordinator.node_state import Cluster

_LABELS = ("instance", "model", "role")


class InstanceCollector(Collector):
    def __init__(self, cluster: Cluster, health: Health) -> None:
        self._cluster = cluster
        self._health = health

    def describe(self) -> Iterable[Metric]:
        return []  # else registering it would ask it before it is built

    def collect(self) -> Iterable[Metric]:
        healthy = GaugeMetricFamily(
            "shadowprefill_instance_healthy", "Answered its last health probe", labels=_LABELS
        )
        draining = GaugeMetricFamily(
            "shadowprefill_instance_draining", "Takes no new calls, by command", labels=_LABELS
        )
        calls = GaugeMetricFamily(
            "shadowprefill_instance_calls_in_flight", "Legs running there", labels=_LABELS
        )
        for instance in self._cluster.instances.values():
            labels = (instance.name, instance.model, instance.role.value)
            healthy.add_metric(labels, instance.healthy)
            draining.add_metric(labels, instance.draining)
            calls.add_metric(labels, instance.inflight_calls)
        ready = GaugeMetricFamily(
            "shadowprefill_model_ready", "Passed its probe and has every role", labels=("model",)
        )
        not_ready = self._health.not_ready()
        for model in self._health.probes:
            ready.add_metric((model,), model not in not_ready)
        return [healthy, draining, calls, ready]
