"""What a scrape shows of the inbound link of a decode instance.

Imports neither vLLM nor torch. Hosts: engine.inbound (fills it), engine.exporter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.core import Metric

    from engine.series import Series


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReading:
    """By reason, by kind of start, by class and outcome, or by KV class."""

    asks: Mapping[str, int]
    looks: Mapping[str, int]
    starts: Mapping[str, int]
    outcomes: Mapping[str, int]
    in_flight: Mapping[str, int]
    bytes_in_flight: Mapping[str, int]
    size_bytes: Mapping[str, int]
    busy_s: Mapping[str, float]
    idle_s: float
    quarantines: int
    refused_hand_offs: int
    quarantined_pairs: int


def link_families(series: Series, link: LinkReading) -> Iterator[Metric]:
    yield series.counter("push_asks", "Grants asked for, by answer", link.asks, "reason")
    yield series.counter("push_looks", "Steps with a push to start", link.looks, "reason")
    text = "Transfers begun; `shadow_beside_normal` never counts"
    yield series.counter("pull_starts", text, link.starts, "start")
    yield series.counter("pull_ends", "Pulls by class and outcome", link.outcomes, "outcome")
    yield series.gauge("pulls_in_flight", "Transfers in flight", link.in_flight, "class")
    text = "Bytes of transfers in flight"
    yield series.gauge("pull_bytes_in_flight", text, link.bytes_in_flight, "class")
    yield series.counter("pull_bytes", "Bytes that arrived", link.size_bytes, "class")
    text = "Time of the transfers that brought them, the engine's polling included"
    yield series.counter("pull_busy_seconds", text, link.busy_s, "class")
    yield series.gauge("link_idle_seconds", "Since the last transfer ended", link.idle_s)
    yield series.counter("pair_quarantines", "Transfers that closed a pair", link.quarantines)
    text = "Hand-offs that did not reach the connector"
    yield series.counter("handoffs_refused", text, link.refused_hand_offs)
    yield series.gauge("pairs_quarantined", "Pairs without pushes", link.quarantined_pairs)
