"""Everything a coordinator is made of, built once from its configuration.

Reads no environment, and no file but that of a learned router. Host: coordinator.app."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.access import LOOPBACK_HOSTS, Access
from coordinator.admission import Admission
from coordinator.call_book import CallBook
from coordinator.call_log import CallLog
from coordinator.call_story import CallStories
from coordinator.call_trace import NoTracing
from coordinator.calls import NoShadow
from coordinator.clients import Clients, tenant_id
from coordinator.cluster_api import ClusterApi
from coordinator.cluster_view import ClusterViews
from coordinator.control_api import ControlApi
from coordinator.dashboard_api import DashboardApi
from coordinator.delivery import Delivery
from coordinator.health import Health
from coordinator.instance_loads import InstanceLoads
from coordinator.instance_series import InstanceCollector
from coordinator.instances_api import InstancesApi
from coordinator.legs import Legs
from coordinator.live_config import LiveConfig
from coordinator.metrics import Metrics, ShadowCollector
from coordinator.node_client import NodeClient
from coordinator.node_state import Cluster
from coordinator.openai_api import OpenAiApi
from coordinator.orphans import Orphans
from coordinator.pd_flow import PdFlow
from coordinator.quotes import Quotes
from coordinator.routers import Routing, build_router
from coordinator.session_store import MemoryStore
from coordinator.session_view import SessionViews
from coordinator.sessions_api import SessionsApi
from coordinator.shadow_flow import ShadowFlow
from coordinator.shadow_quota import ShadowQuota
from coordinator.usage import Usage
from coordinator.usage_api import UsageApi
from coordinator.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fastapi import APIRouter

    from configs.keys import KeyFile
    from configs.schema import ClusterConfig, CoordinatorConfig
    from coordinator.call_trace import Tracing
    from coordinator.calls import ShadowHooks
    from coordinator.session_store import SessionStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    config: ClusterConfig
    clock: Callable[[], float]
    metrics: Metrics
    wire: Wire
    orphans: Orphans
    cluster: Cluster
    client: NodeClient
    clients: Clients
    quota: ShadowQuota
    usage: Usage
    shadow: ShadowHooks
    sessions: SessionStore
    book: CallBook
    call_log: CallLog | None
    health: Health
    tracing: Tracing

    def hot_api(self) -> OpenAiApi:
        """The calls. Raises ValueError for a router that cannot be built."""
        config, limits = self.config, self.config.coordinator
        models = list(config.models)
        legs = Legs(
            cluster=self.cluster,
            client=self.client,
            orphans=self.orphans,
            book=self.book,
            metrics=self.metrics,
            secret=limits.engine_secret,
            clock=self.clock,
        )
        flow = PdFlow(
            models=config.models,
            sessions=self.sessions,
            routing=Routing(
                models=models,
                router=build_router(config.router, models, self.wire),
                on_failure=self.metrics.router_failures.inc,
            ),
            legs=legs,
            delivery=Delivery(self.book, self.shadow),
            shadow=self.shadow,
            book=self.book,
            usage=self.usage,
            call_log=self.call_log,
        )
        return OpenAiApi(
            flow=flow,
            clients=self.clients,
            admission=Admission(limits, self.clock),
            metrics=self.metrics,
            stories=CallStories(tracing=self.tracing, is_logged=limits.log_format == "json"),
            max_body_bytes=limits.max_body_bytes,
            clock=self.clock,
        )

    def control_routers(self) -> Iterator[APIRouter]:
        """Everything else."""
        access, config = Access(self.clients), self.config
        yield ControlApi(
            access=access,
            config=config,
            health=self.health,
            metrics=self.metrics,
            started_at=int(time.time()),
        ).router()
        views = SessionViews(book=self.book, clock=self.clock)
        yield SessionsApi(
            access=access,
            sessions=self.sessions,
            shadow=self.shadow,
            views=views,
            quotes=Quotes(config, self.cluster, views),
            models=config.models,
        ).router()
        live = LiveConfig(config)
        cluster_views = ClusterViews(
            live=live,
            cluster=self.cluster,
            health=self.health,
            shadow=self.shadow,
            metrics=self.metrics,
            clock=self.clock,
            started_s=self.clock(),
        )
        yield InstancesApi(
            access=access,
            live=live,
            cluster=self.cluster,
            health=self.health,
            views=cluster_views,
        ).router()
        yield ClusterApi(
            access=access,
            live=live,
            shadow=self.shadow,
            sessions=self.sessions,
            views=cluster_views,
            loads=InstanceLoads(live, self.cluster, self.wire, self.clock),
        ).router()
        yield UsageApi(access=access, usage=self.usage, quota=self.quota).router()
        yield DashboardApi.read().router()


def build_parts(
    config: ClusterConfig,
    keys: KeyFile | None,
    clock: Callable[[], float],
    shadow: ShadowHooks | None,
    tracing: Tracing | None,
) -> Parts:
    """`shadow` and `tracing`: instead of those of the configuration. Raises ValueError."""
    limits = config.coordinator
    metrics, wire = Metrics(), Wire(connect_timeout_s=limits.connect_timeout_s)
    cluster = Cluster(config, clock)
    client = NodeClient(
        wire,
        first_byte_timeout_s=limits.first_byte_timeout_s,
        answer_timeout_s=limits.answer_timeout_s,
        idle_timeout_s=limits.stream_idle_timeout_s,
    )
    log = limits.call_log
    quota, usage = _quota(config, keys, clock), Usage(config.models)
    sessions = _store(limits, clock)
    hooks = shadow or _shadow_of(config, cluster, metrics, quota, usage, sessions)
    sessions.on_dropped = hooks.session_finished
    health = Health(config=config, cluster=cluster, client=client)
    metrics.registry.register(InstanceCollector(cluster, health))
    return Parts(
        config=config,
        clock=clock,
        metrics=metrics,
        wire=wire,
        orphans=Orphans(wire, metrics),
        cluster=cluster,
        client=client,
        clients=Clients(keys, limits.limits, open_control=limits.host in LOOPBACK_HOSTS),
        quota=quota,
        usage=usage,
        shadow=hooks,
        sessions=sessions,
        book=CallBook(config.models, metrics, clock),
        health=health,
        tracing=tracing or _tracing_of(limits),
        call_log=None if log is None else CallLog(log, metrics.calls_not_logged.inc),
    )


def _tracing_of(limits: CoordinatorConfig) -> Tracing:
    if limits.otlp_endpoint is None:
        return NoTracing()
    try:
        from coordinator.otel import OtelTracing, exporter_to

        exporter = exporter_to(limits.otlp_endpoint)
    except ImportError as error:
        raise ValueError(
            f"coordinator.otlp_endpoint needs the extra `otel` (shadowprefill[otel]): {error}"
        ) from None
    return OtelTracing(exporter, limits.otlp_sample_share)


def _store(limits: CoordinatorConfig, clock: Callable[[], float]) -> SessionStore:
    if limits.redis_url is None:
        return MemoryStore(
            ttl_s=limits.session_ttl_s, max_sessions=limits.max_sessions, clock=clock
        )
    # Here, because its client is an extra: who has no Redis need not install it.
    from coordinator.redis_store import RedisStore

    return RedisStore(
        limits.redis_url,
        password=limits.redis_password,
        ttl_s=limits.session_ttl_s,
        max_sessions=limits.max_sessions,
        clock=clock,
    )


def _quota(config: ClusterConfig, keys: KeyFile | None, clock: Callable[[], float]) -> ShadowQuota:
    tenants = {} if keys is None else keys.tenants
    own = {tenant_id(name): tenant.shadow_tokens_per_hour for name, tenant in tenants.items()}
    return ShadowQuota(config.coordinator.limits.shadow_tokens_per_hour, own, clock)


def _shadow_of(
    config: ClusterConfig,
    cluster: Cluster,
    metrics: Metrics,
    quota: ShadowQuota,
    usage: Usage,
    sessions: SessionStore,
) -> ShadowHooks:
    if sum(model.shadow for model in config.models.values()) < 2:
        return NoShadow()
    flow = ShadowFlow(config, cluster, quota, usage, sessions.changed)
    metrics.registry.register(ShadowCollector(flow.counters))
    return flow
