"""What instances and the cluster look like from outside. Reads, changes nothing.

Host: coordinator.cluster_api."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from coordinator.control_shapes import ClusterSummary, InstanceRow, ModelSummary, ShadowSummary
from coordinator.own_version import own_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.calls import ShadowHooks
    from coordinator.health import Health
    from coordinator.instances import Instance
    from coordinator.live_config import LiveConfig
    from coordinator.metrics import Metrics
    from coordinator.node_state import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterViews:
    """Writes instances and the cluster as the shapes of the control API."""

    live: LiveConfig
    cluster: Cluster
    health: Health
    shadow: ShadowHooks
    metrics: Metrics
    clock: Callable[[], float]
    started_s: float

    def instance(self, instance: Instance) -> InstanceRow:
        configured = self.live.current.instances.get(instance.name)
        return InstanceRow(
            name=instance.name,
            model=instance.model,
            role=instance.role,
            url=instance.url,
            metrics_url=None if configured is None else configured.metrics_url,
            healthy=instance.healthy,
            state=self._state(instance),
            registered=instance.registered,
            last_error=instance.last_error or None,
            silent_probes=instance.silent_probes,
            failures=instance.failures,
            inflight_calls=instance.inflight_calls,
            inflight_tokens=instance.inflight_tokens,
            handoff_s=instance.handoff_s or None,
        )

    def summary(self, sessions: int) -> ClusterSummary:
        instances = self.cluster.instances.values()
        reasons = self.health.not_ready()
        return ClusterSummary(
            version=own_version(),
            profile=self.live.current.profile,
            controller=self.live.current.shadow.controller,
            uptime_s=self.clock() - self.started_s,
            ready=not reasons,
            models={
                name: self._model(name, reasons.get(name)) for name in self.live.current.models
            },
            instances=len(instances),
            healthy_instances=sum(one.healthy for one in instances),
            sessions=sessions,
            calls_in_flight=self.metrics.calls_in_flight,
            shadow=self._shadow(),
        )

    def _model(self, name: str, why_not: str | None) -> ModelSummary:
        model, instances = self.live.current.models[name], self.cluster.of_model(name)
        return ModelSummary(
            ready=why_not is None,
            why_not=why_not,
            is_disaggregated=self.cluster.is_disaggregated(name),
            shadow=model.shadow,
            max_model_len=model.max_model_len,
            instances=len(instances),
            healthy_instances=sum(one.healthy for one in instances),
        )

    def _shadow(self) -> ShadowSummary:
        counters = self.shadow.counters
        return ShadowSummary(
            computed_tokens=counters.computed_tokens,
            used_tokens=self.metrics.shadow_tokens_used,
            pushed_tokens=counters.pushed_tokens,
            segments=counters.segments,
            jobs=counters.jobs,
            running=self.shadow.running,
        )

    def _state(
        self, instance: Instance
    ) -> Literal["healthy", "suspect", "unhealthy", "draining", "drained"]:
        if instance.draining:
            return "draining" if instance.inflight_calls else "drained"
        if not instance.healthy:
            return "unhealthy"
        return "suspect" if instance.suspect_until_s > self.clock() else "healthy"
