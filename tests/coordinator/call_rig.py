"""A coordinator over fake engines, all on real sockets in the test's own loop."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import uvicorn
from uvicorn.server import ServerState

from bench.fake_engine import FakeEngine, RecordedRequest, create_app, running
from bench.fake_engine.server import close_with_connections
from configs.schema import ClusterConfig
from coordinator.app import CoordinatorApp
from coordinator.app import create_app as create_coordinator
from coordinator.calls import CallContext, NoShadow
from coordinator.hot_protocol import HotProtocol
from tests.coordinator.shadow_rig import shadow_config

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    from configs.keys import KeyFile
    from coordinator.call_trace import Tracing
    from coordinator.sessions import Session

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
DEADLINE_S = 10.0


def a_chat(text: str = "hello there", **fields: Any) -> dict[str, Any]:
    body = {"model": "small", "messages": [{"role": "user", "content": text}], "max_tokens": 4}
    return body | fields


def a_turn(*texts: str) -> list[dict[str, str]]:
    """user, assistant, user, ..."""
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]


def a_cluster(
    instances: dict[str, tuple[str, str, str]],
    limits: dict[str, Any] | None = None,
    router: dict[str, Any] | None = None,
    models: dict[str, dict[str, Any]] | None = None,
    shadow: dict[str, Any] | None = None,
    metrics_ports: dict[str, int] | None = None,
) -> ClusterConfig:
    """`instances`: name -> (model, role, URL)."""
    names = dict.fromkeys(model for model, _, _ in instances.values())
    return ClusterConfig.model_validate(
        {
            "profile": "cpu",
            "models": {
                name: {
                    "path": name,
                    "max_model_len": 8192,
                    "slo": {"ttft_s": 5.0, "tpot_s": 0.2},
                    **(models or {}).get(name, {}),
                }
                for name in names
            },
            "instances": {
                name: {
                    "model": model,
                    "role": role,
                    "port": 8000 + at,
                    "kv_port": None if role == "colocated" else 9000 + at,
                    "attach_url": url,
                    "metrics_port": (metrics_ports or {}).get(name),
                }
                for at, (name, (model, role, url)) in enumerate(instances.items())
            },
            "shadow": shadow_config(**shadow or {}).model_dump(),
            "router": router or {"kind": "explicit"},
            "coordinator": {"probe_interval_s": 0.05, "connect_timeout_s": 1.0} | (limits or {}),
        }
    )


@dataclass
class HookLog(NoShadow):
    """Shadow hooks that write down what they were told."""

    events: list[tuple[str, str, str]] = field(default_factory=list)
    output: bytes = b""
    ok: list[bool] = field(default_factory=list)

    def call_started(self, session: Session, call: CallContext) -> None:
        self.events.append(("started", session.id, call.model))

    def output_bytes(self, session: Session, call: CallContext, chunk: bytes) -> None:
        self.output += chunk

    def call_ended(self, session: Session, call: CallContext, ok: bool) -> None:
        self.events.append(("ended", session.id, call.model))
        self.ok.append(ok)

    def session_finished(self, session: Session) -> None:
        self.events.append(("finished", session.id, ""))


@dataclass
class Rig:
    """What a test holds."""

    app: CoordinatorApp
    client: httpx.AsyncClient
    url: str
    engines: dict[str, FakeEngine]
    hooks: HookLog

    async def chat(self, body: dict[str, Any], **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(CHAT, json=body, headers=named)

    def calls(self, instance: str) -> list[RecordedRequest]:
        """Generating requests that reached an engine, probes excluded."""
        return [
            request
            for request in self.engines[instance].generating()
            if not str(request.body.get("prompt", "")).startswith(" a a")
        ]

    def all_calls(self) -> list[RecordedRequest]:
        return [request for name in self.engines for request in self.calls(name)]


PD = {"small-p": ("small", "prefill"), "small-d": ("small", "decode")}
TWO_PD = PD | {"large-p": ("large", "prefill"), "large-d": ("large", "decode")}
COLOCATED = {"small-1": ("small", "colocated"), "large-1": ("large", "colocated")}


@asynccontextmanager
async def a_coordinator(
    layout: dict[str, tuple[str, str]],
    *,
    limits: dict[str, Any] | None = None,
    router: dict[str, Any] | None = None,
    models: dict[str, dict[str, Any]] | None = None,
    engine: dict[str, Any] | None = None,
    prepare: Callable[[dict[str, FakeEngine]], None] = lambda engines: None,
    ready: bool = True,
    shadow: bool = False,
    shadow_params: dict[str, Any] | None = None,
    metrics_ports: dict[str, int] | None = None,
    keys: KeyFile | None = None,
    tracing: Tracing | None = None,
    protocol: type[HttpToolsProtocol] = HotProtocol,
) -> AsyncIterator[Rig]:
    """Everything runs and, unless told otherwise, every model is ready. `prepare` sees the engines
    before the coordinator does; `shadow`: the real shadow flow instead of a log."""
    async with AsyncExitStack() as stack:
        engines, instances = {}, {}
        for name, (model, role) in layout.items():
            fake = create_app(model=model, role=role, **(engine or {}))
            url = await stack.enter_async_context(running(fake))
            engines[name], instances[name] = fake.state.engine, (model, role, url)
        prepare(engines)
        hooks = HookLog()
        config = a_cluster(instances, limits, router, models, shadow_params, metrics_ports)
        app = create_coordinator(
            config, keys=keys, shadow=None if shadow else hooks, tracing=tracing
        )
        url = await stack.enter_async_context(serving(app, protocol))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=20))
        if ready:
            await until(lambda: not app.state.health.not_ready(), "ready")
            # A probe that was answered a moment ago still counts there, and is no call of a test.
            await until(lambda: not any(one.running for one in engines.values()), "probes over")
        yield Rig(app, client, url, engines, hooks)


@asynccontextmanager
async def serving(
    app: CoordinatorApp, protocol: type[HttpToolsProtocol] = HotProtocol
) -> AsyncIterator[str]:
    """As uvicorn serves it, lifespan included."""
    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False)
    config.load()
    state = ServerState()
    door = {"api": app.hot} if protocol is HotProtocol else {}
    served = functools.partial(protocol, config=config, server_state=state, app_state={}, **door)
    async with app.router.lifespan_context(app):
        server = await asyncio.get_running_loop().create_server(served, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            await close_with_connections(server, state)


async def until(condition: Callable[[], object], what: str) -> None:
    """Polls with a deadline."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + DEADLINE_S
    while not condition():
        assert loop.time() < deadline_s, f"never happened: {what}"
        await asyncio.sleep(0.005)


def events_of(stream: bytes) -> list[Any]:
    """The SSE events of a whole stream; `[DONE]` stays a string."""
    found = []
    for event in stream.decode().split("\n\n"):
        if event:
            assert event.startswith("data: "), event
            data = event.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
    return found


def text_of(events: list[Any]) -> str:
    return "".join(
        choice["delta"].get("content") or ""
        for event in events
        if event != "[DONE]"
        for choice in event.get("choices", [])
    )


@contextmanager
def in_a_thread(layout: dict[str, tuple[str, str]], **how: Any) -> Iterator[Rig]:
    """The same for a client that is not asynchronous."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="coordinator", daemon=True)
    thread.start()
    running_rig = a_coordinator(layout, **how)
    try:
        yield asyncio.run_coroutine_threadsafe(running_rig.__aenter__(), loop).result(60)
        asyncio.run_coroutine_threadsafe(running_rig.__aexit__(None, None, None), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
