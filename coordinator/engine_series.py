"""From an engine's Prometheus series to what the control API shows of its load.

Knows the names of engine.exporter, and nobody else in the coordinator does. Pure.
Host: coordinator.instance_loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.parser import text_string_to_metric_families

from coordinator.load_shapes import InstanceLoad, KvUse, LinkUse, SlackUse, TransferUse
from engine.series import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

_LABEL_OF: Final = {
    "requests": "state",
    "jobs_queued": "",
    "missing_tokens": "",
    "kv_blocks": "state",
    "shadow_blocks_cap": "",
    "shadow_tokens_total": "",
    "iterations_total": "kind",
    "step_seconds_sum": "kind",
    "credit_seconds": "",
    "grants_total": "reason",
    "pulls_in_flight": "class",
    "pull_bytes_in_flight": "class",
    "pull_bytes_total": "class",
    "pull_busy_seconds_total": "class",
    "link_idle_seconds": "",
    "pairs_quarantined": "",
}
"""What is read here, with the label that tells its samples apart."""

_Values = dict[str, dict[str, float]]


def load_in(name: str, exposition: str) -> InstanceLoad:
    """Raises ValueError for what are no series of ours."""
    values = _values_in(exposition)
    if "requests" not in values:
        raise ValueError("is not the port of a ShadowPrefill engine")
    return InstanceLoad(
        name=name,
        why_not=None,
        running_requests=int(values["requests"].get("running", 0)),
        waiting_requests=int(values["requests"].get("waiting", 0)),
        queued_jobs=int(_one(values, "jobs_queued")),
        missing_tokens=int(_one(values, "missing_tokens")),
        kv=_kv(values) if "kv_blocks" in values else None,
        slack=_slack(values) if "iterations_total" in values else None,
        link=_link(values) if "link_idle_seconds" in values else None,
    )


def _kv(values: _Values) -> KvUse:
    blocks = {state: int(count) for state, count in values["kv_blocks"].items()}
    return KvUse(
        total_blocks=sum(blocks.values()),
        normal_used_blocks=blocks.get("normal_used", 0),
        normal_cached_blocks=blocks.get("normal_cached", 0),
        shadow_used_blocks=blocks.get("shadow_used", 0),
        shadow_cached_blocks=blocks.get("shadow_cached", 0),
        shadow_cap_blocks=int(_one(values, "shadow_blocks_cap")),
    )


def _slack(values: _Values) -> SlackUse:
    iterations, took_s = values["iterations_total"], values.get("step_seconds_sum", {})
    plans = {reason: int(count) for reason, count in values.get("grants_total", {}).items()}
    return SlackUse(
        shadow_tokens=int(_one(values, "shadow_tokens_total")),
        shadow_iterations=int(iterations.get("shadow", 0)),
        plain_iterations=int(iterations.get("plain", 0)),
        shadow_iteration_s=took_s.get("shadow", 0.0),
        plain_iteration_s=took_s.get("plain", 0.0),
        credit_s=_one(values, "credit_seconds"),
        plans=plans,
    )


def _link(values: _Values) -> LinkUse:
    return LinkUse(
        normal=_transfers(values, "normal"),
        shadow=_transfers(values, "shadow"),
        idle_s=_one(values, "link_idle_seconds"),
        quarantined_pairs=int(_one(values, "pairs_quarantined")),
    )


def _transfers(values: _Values, kv_class: str) -> TransferUse:
    return TransferUse(
        in_flight=int(values.get("pulls_in_flight", {}).get(kv_class, 0)),
        in_flight_bytes=int(values.get("pull_bytes_in_flight", {}).get(kv_class, 0)),
        arrived_bytes=int(values.get("pull_bytes_total", {}).get(kv_class, 0)),
        busy_s=values.get("pull_busy_seconds_total", {}).get(kv_class, 0.0),
    )


def _one(values: _Values, name: str) -> float:
    return values.get(name, {}).get("", 0.0)


def _values_in(exposition: str) -> _Values:
    values: _Values = {}
    for family in text_string_to_metric_families("\n".join(_wanted_lines(exposition)) + "\n"):
        for sample in family.samples:
            short = sample.name.removeprefix(PREFIX)
            label = sample.labels.get(_LABEL_OF[short], "")
            values.setdefault(short, {})[label] = sample.value
    return values


def _wanted_lines(exposition: str) -> Iterator[str]:
    """Without the buckets, which are most of it: reading a line costs more than skipping it."""
    for line in exposition.splitlines():
        name = line.partition("{")[0]
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) in _LABEL_OF:
            yield line
