"""Serves a fake engine over real sockets: in the running loop, in a thread, or as a process.

uvicorn's protocol is used without its `Server`, whose loop ticks ten times a second and takes
over the signal handlers. Hosts: tests, `python -m bench.fake_engine`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from bench.fake_engine.app import FakeApp


ACCEPT_TURNS = 4
"""Of the event loop, from `accept()` to the end of `connection_made` (asyncio's selector loop takes
three: a task, its transport, the protocol)."""


class DroppingProtocol(HttpToolsProtocol):
    """Gives the application a way to lose the connection, which ASGI has no word for."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope = cast("dict[str, Any]", self.scope)
        scope["extensions"] = {"drop": self.transport.abort}


@contextlib.asynccontextmanager
async def running(app: FakeApp, port: int = 0) -> AsyncIterator[str]:
    """Serves `app` on 127.0.0.1 and gives its base URL; everything is closed on the way out."""
    # uvicorn's types want a TypedDict-typed application; ours is typed by plain dicts.
    application = cast("Any", app)
    config = uvicorn.Config(application, lifespan="off", log_config=None, access_log=False)
    config.load()
    state = ServerState()
    protocol = functools.partial(DroppingProtocol, config=config, server_state=state, app_state={})
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", port)
    loop = asyncio.get_running_loop()
    closings: list[asyncio.Task[None]] = []

    def close() -> None:
        closings.append(loop.create_task(close_with_connections(server, state)))

    app.state.engine.faults.on_kill(lambda: loop.call_soon_threadsafe(close))
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        close()
        await asyncio.gather(*closings)


async def close_with_connections(server: asyncio.Server, state: ServerState) -> None:
    """Ends a server of uvicorn's protocol: no connection and no task of it is left."""
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    # A connection that was accepted a moment ago reaches its protocol only some turns later, and
    # asyncio forgets it, open, where its server is closed before that.
    for _ in range(ACCEPT_TURNS):
        await asyncio.sleep(0)
    server.close()
    for connection in list(state.connections):
        connection.transport.abort()
    await asyncio.sleep(0)
    if state.tasks:
        await asyncio.wait(state.tasks)


@contextlib.contextmanager
def serve_in_thread(app: FakeApp, port: int = 0) -> Iterator[str]:
    """The same for callers without an event loop."""
    loop = asyncio.new_event_loop()
    serving = running(app, port)
    thread = threading.Thread(target=loop.run_forever, name="fake-engine", daemon=True)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(serving.__aenter__(), loop).result(10)
        asyncio.run_coroutine_threadsafe(serving.__aexit__(None, None, None), loop).result(10)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
