"""Composes the coordinator: one FastAPI application, whose two hot paths skip FastAPI.

Everything is built here, once, from the configuration; nothing below reads a file or the
environment."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from coordinator.call_book import CallBook
from coordinator.calls import NoShadow
from coordinator.cluster_api import ClusterApi
from coordinator.cluster_view import ClusterViews
from coordinator.control_api import ControlApi
from coordinator.delivery import Delivery
from coordinator.errors import BodyInvalid, CallError
from coordinator.health import Health
from coordinator.legs import Legs
from coordinator.metrics import Metrics, ShadowCollector
from coordinator.node_client import NodeClient
from coordinator.node_state import Cluster
from coordinator.openai_api import KINDS, OpenAiApi
from coordinator.pd_flow import PdFlow
from coordinator.quotes import Quotes
from coordinator.routers import Routing, build_router
from coordinator.session_store import MemoryStore
from coordinator.session_view import SessionViews
from coordinator.sessions_api import SessionsApi
from coordinator.shadow_flow import ShadowFlow
from coordinator.wire import Wire
from policy.vocabulary import Controller

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from fastapi import Request

    from configs.schema import ClusterConfig
    from coordinator.calls import ShadowHooks
    from coordinator.openai_api import Receive, Scope, Send


class CoordinatorApp(FastAPI):
    """The door. `hot` answers the paths in KINDS without FastAPI's middleware, and most of their
    requests without ASGI (coordinator.hot_protocol)."""

    hot: OpenAiApi

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in KINDS:
            await self.hot(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create_app(
    config: ClusterConfig,
    *,
    clock: Callable[[], float] = time.monotonic,
    shadow: ShadowHooks | None = None,
) -> CoordinatorApp:
    """The application of one cluster. `clock` and `shadow` are there for tests. Raises ValueError
    for a router that cannot be built."""
    limits = config.coordinator
    metrics = Metrics()
    wire = Wire(connect_timeout_s=limits.connect_timeout_s)
    cluster = Cluster(config, clock)
    client = NodeClient(
        wire,
        first_byte_timeout_s=limits.first_byte_timeout_s,
        answer_timeout_s=limits.answer_timeout_s,
        idle_timeout_s=limits.stream_idle_timeout_s,
    )
    hooks = shadow or _shadow_of(config, cluster, metrics)
    sessions = MemoryStore(
        ttl_s=limits.session_ttl_s,
        max_sessions=limits.max_sessions,
        clock=clock,
        on_dropped=hooks.session_finished,
    )
    models = list(config.models)
    routing = Routing(
        models=models,
        router=build_router(config.router, models, wire),
        on_failure=metrics.router_failures.inc,
    )
    book = CallBook(config.models, metrics, clock)
    legs = Legs(
        cluster=cluster,
        client=client,
        book=book,
        metrics=metrics,
        secret=limits.engine_secret,
        clock=clock,
    )
    flow = PdFlow(
        models=config.models,
        sessions=sessions,
        routing=routing,
        legs=legs,
        delivery=Delivery(book, hooks),
        shadow=hooks,
        book=book,
    )
    health = Health(config=config, cluster=cluster, client=client)
    control = ControlApi(config=config, health=health, metrics=metrics, started_at=int(time.time()))
    session_views = SessionViews(book=book, clock=clock)
    sessions_api = SessionsApi(
        sessions=sessions,
        shadow=hooks,
        views=session_views,
        quotes=Quotes(config, cluster, session_views),
        models=config.models,
    )
    views = ClusterViews(
        config=config,
        cluster=cluster,
        health=health,
        shadow=hooks,
        metrics=metrics,
        clock=clock,
        started_s=clock(),
    )
    cluster_api = ClusterApi(cluster=cluster, sessions=sessions, views=views)

    app = CoordinatorApp(title="ShadowPrefill coordinator", lifespan=_lifespan(health, hooks, wire))
    app.hot = OpenAiApi(
        flow=flow, metrics=metrics, max_body_bytes=limits.max_body_bytes, clock=clock
    )
    app.state.cluster, app.state.sessions, app.state.health = cluster, sessions, health
    app.state.metrics, app.state.shadow = metrics, hooks
    for api in (control, sessions_api, cluster_api):
        app.include_router(api.router())
    app.add_exception_handler(CallError, _call_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _parameter_error)
    return app


def _lifespan(
    health: Health, shadow: ShadowHooks, wire: Wire
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await health.start()
        await shadow.start()
        try:
            yield
        finally:
            await shadow.stop()
            await health.stop()
            await wire.close()

    return lifespan


def _shadow_of(config: ClusterConfig, cluster: Cluster, metrics: Metrics) -> ShadowHooks:
    targets = sum(model.shadow for model in config.models.values())
    if config.shadow.controller is Controller.OFF or targets < 2:
        return NoShadow()
    flow = ShadowFlow(config, cluster)
    metrics.registry.register(ShadowCollector(flow.counters))
    return flow


async def _call_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, CallError), error
    return Response(error.body(), error.status, media_type="application/json")


async def _http_error(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, in OpenAI's shape too."""
    assert isinstance(error, HTTPException), error
    told = BodyInvalid(f"{request.method} {request.url.path}: {error.detail}")
    return Response(told.body(), error.status_code, media_type="application/json")


async def _parameter_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError), error
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return await _call_error(request, BodyInvalid(f"{name}: {first['msg']}", name))
