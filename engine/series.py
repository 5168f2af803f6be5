"""Prometheus families of one engine: each sample names its model and instance.

Hosts: engine.exporter, engine.link_series."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

if TYPE_CHECKING:
    from collections.abc import Mapping

    from prometheus_client.core import Metric

    from engine.counts import Buckets

PREFIX = "shadowprefill_engine_"

Values: TypeAlias = "float | Mapping[str, float]"


class Series:
    """Builds families whose samples all name the model and the instance."""

    def __init__(self, model: str, instance: str) -> None:
        self._names = ("model", "instance")
        self._values = (model, instance)

    def counter(self, name: str, text: str, values: Values, label: str = "") -> Metric:
        family = CounterMetricFamily(PREFIX + name, text, labels=self._labels(label))
        return self._filled(family, values)

    def gauge(self, name: str, text: str, values: Values, label: str = "") -> Metric:
        family = GaugeMetricFamily(PREFIX + name, text, labels=self._labels(label))
        return self._filled(family, values)

    def histogram(
        self, name: str, text: str, values: Mapping[str, Buckets], label: str = ""
    ) -> Metric:
        family = HistogramMetricFamily(PREFIX + name, text, labels=self._labels(label))
        for value, buckets in values.items():
            total = buckets.total
            family.add_metric(self._of(value), list(buckets.cumulative()), total)
        return family

    def _filled(self, family: CounterMetricFamily | GaugeMetricFamily, values: Values) -> Metric:
        by_label = {"": values} if isinstance(values, int | float) else values
        for value, number in by_label.items():
            family.add_metric(self._of(value), number)
        return family

    def _labels(self, label: str) -> tuple[str, ...]:
        return (*self._names, label) if label else self._names

    def _of(self, value: str) -> tuple[str, ...]:
        return (*self._values, value) if value else self._values
