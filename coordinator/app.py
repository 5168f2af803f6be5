"""The coordinator as one FastAPI application, whose two hot paths skip FastAPI."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from fastapi import FastAPI, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from coordinator.call_shapes import call_paths
from coordinator.errors import BodyInvalid, BodyTooLarge, CallError
from coordinator.openai_api import KINDS, OpenAiApi
from coordinator.parts import build_parts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, MutableMapping
    from contextlib import AbstractAsyncContextManager

    from fastapi import Request

    from configs.keys import KeyFile
    from configs.schema import ClusterConfig
    from coordinator.call_trace import Tracing
    from coordinator.calls import ShadowHooks
    from coordinator.openai_api import Receive, Scope, Send
    from coordinator.parts import Parts

MAX_CONTROL_BODY_BYTES: Final = 1024 * 1024
"""Of a request to any path but the hot ones, which have a limit of their own."""


class CoordinatorApp(FastAPI):
    """The door. `hot` answers the paths in KINDS without FastAPI's middleware, and most of their
    requests without ASGI (coordinator.hot_protocol)."""

    hot: OpenAiApi

    def openapi(self) -> dict[str, Any]:
        schema = super().openapi()
        schema["paths"].update(call_paths())
        return schema

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in KINDS:
            await self.hot(scope, receive, send)
        else:
            await super().__call__(
                scope, _limited(receive) if scope["type"] == "http" else receive, send
            )


def create_app(
    config: ClusterConfig,
    *,
    keys: KeyFile | None = None,
    clock: Callable[[], float] = time.monotonic,
    shadow: ShadowHooks | None = None,
    tracing: Tracing | None = None,
) -> CoordinatorApp:
    """The application of one cluster. `clock`, `shadow` and `tracing` are there for tests. Raises
    ValueError for a router or traces that cannot be built."""
    parts = build_parts(config, keys, clock, shadow, tracing)
    app = CoordinatorApp(title="ShadowPrefill coordinator", lifespan=_lifespan(parts))
    app.hot = parts.hot_api()
    app.state.cluster, app.state.sessions, app.state.health = (
        parts.cluster,
        parts.sessions,
        parts.health,
    )
    app.state.metrics, app.state.shadow = parts.metrics, parts.shadow
    for router in parts.control_routers():
        app.include_router(router)
    app.add_exception_handler(CallError, _call_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _parameter_error)
    return app


def _lifespan(parts: Parts) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await parts.sessions.start()
        await parts.health.start()
        await parts.shadow.start()
        if parts.call_log is not None:
            await parts.call_log.start()
        try:
            yield
        finally:
            await parts.shadow.stop()
            if parts.call_log is not None:
                await parts.call_log.stop()
            await parts.health.stop()
            await parts.sessions.stop()
            await parts.orphans.stop()
            await parts.wire.close()
            await asyncio.to_thread(parts.tracing.close)

    return lifespan


def _limited(receive: Receive) -> Receive:
    """Nobody may fill our memory through a path that reads its whole body."""
    size = 0

    async def receive_within() -> MutableMapping[str, Any]:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > MAX_CONTROL_BODY_BYTES:
            error = BodyTooLarge(MAX_CONTROL_BODY_BYTES)
            raise HTTPException(error.status, str(error))
        return message

    return receive_within


async def _call_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, CallError), error
    wait_s = error.retry_after_s
    headers = {} if wait_s is None else {"retry-after": str(wait_s)}
    return Response(error.body(), error.status, headers, media_type="application/json")


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
