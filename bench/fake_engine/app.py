"""The fake engine over HTTP: one raw ASGI application. Host: bench.fake_engine.server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from types import SimpleNamespace
from typing import Any

from bench.fake_engine.model import (
    GENERATE_PATHS,
    EngineSettings,
    FakeEngine,
    RecordedRequest,
    asked_push,
    salt_of,
)
from bench.fake_engine.named_replies import chunks_of, message_error, whole_of
from bench.fake_engine.replies import (
    EngineError,
    aborted,
    asked,
    controlled,
    model_list,
    rendered,
)

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_RENDER_PATHS = frozenset({f"{path}/render" for path in GENERATE_PATHS} | {"/tokenize"})


class FakeApp:
    """The ASGI application around a FakeEngine."""

    def __init__(self, settings: EngineSettings) -> None:
        self.state = SimpleNamespace(engine=FakeEngine(settings))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", scope["type"]
        raw, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            raw, more = raw + message.get("body", b""), message.get("more_body", False)
        answering = asyncio.create_task(Exchange(self.state.engine, scope, raw, send).run())
        watching = asyncio.create_task(_until_disconnect(receive))
        try:
            await asyncio.wait((answering, watching), return_when=asyncio.FIRST_COMPLETED)
        finally:
            watching.cancel()
            answering.cancel()
            await asyncio.gather(watching, answering, return_exceptions=True)
        if not answering.cancelled():
            answering.result()


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Exchange:
    """One request and its answer."""

    def __init__(self, engine: FakeEngine, scope: Scope, raw: bytes, send: Send) -> None:
        self._engine = engine
        self._scope = scope
        self._raw = raw
        self._send = send

    async def run(self) -> None:
        await self._engine.faults.everything.passed()
        try:
            await self._route(self._scope["method"], self._scope["path"])
        except EngineError as error:
            body = error.body()
            is_message = self._scope["path"] == "/v1/messages"
            await self._json(message_error(body) if is_message else body, error.status)

    async def _route(self, method: str, path: str) -> None:
        engine, settings = self._engine, self._engine.settings
        if method == "POST" and path in GENERATE_PATHS:
            await self._generate(path)
        elif method == "POST" and path in _RENDER_PATHS:
            await self._render(path)
        elif method == "POST":
            await self._control(path)
        elif path == "/health":
            await self._bytes(b"", "text/plain")
        elif path == "/v1/models":
            await self._json(model_list(settings.model, settings.max_model_len))
        elif path == "/version":
            await self._json({"version": "0.32.0"})
        elif path == "/metrics":
            text = f'vllm:num_requests_running{{model_name="{settings.model}"}} {engine.running}\n'
            await self._bytes(text.encode(), "text/plain; version=0.0.4")
        else:
            raise EngineError(404, "Not Found")

    async def _control(self, path: str) -> None:
        if path == "/reset_prefix_cache":
            self._engine.cache.clear()
            await self._json({"success": True})
        elif path == "/inference/v1/abort_requests":
            self._engine.abort(json.loads(self._raw)["request_ids"])
            await self._bytes(b"", "text/plain")
        else:
            raise EngineError(404, "Not Found")

    async def _generate(self, path: str) -> None:
        engine = self._engine
        record = self._record(path)
        engine.running += 1
        try:
            if await self._is_aborted(record):
                await self._json(aborted(engine.settings.model))
        except asyncio.CancelledError:
            # A client may close as soon as it has the last byte.
            record.cancelled = not record.finished
            engine.cancelled += record.cancelled
            raise
        finally:
            engine.running -= 1

    async def _is_aborted(self, record: RecordedRequest) -> bool:
        """Answers the request, unless it is told to abort it first."""
        answering = asyncio.create_task(self._answer(record))
        abort = self._engine.abort_of(record)
        try:
            await asyncio.wait((answering, abort), return_when=asyncio.FIRST_COMPLETED)
        finally:
            abort.cancel()
            is_done = answering.done() or not answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
        if is_done:
            answering.result()
        else:
            record.cancelled = True
            self._engine.cancelled += 1
        return not is_done

    async def _answer(self, record: RecordedRequest) -> None:
        engine, faults = self._engine, self._engine.faults
        ask = asked_push(record.body)
        if ask is not None:  # answered at once, whatever hangs or fails behind it
            record.prompt_ids = engine.prompt_ids(record.path, record.body)
            await self._json(asked(engine.settings.model, engine.answer_ask(record, ask)))
            return
        status = faults.take_status()
        if status is not None:
            raise EngineError(status, f"fake engine {engine.settings.model} was told to fail")
        if faults.take_drop():
            self._drop()
            return
        await faults.answers.passed()
        _check_limits(record.body)
        change = engine.take_control(record.body)
        if change is not None:
            await self._json(controlled(engine.settings.model, change))
            return
        record.prompt_ids = engine.prompt_ids(record.path, record.body)
        record.cached_tokens = engine.cache.hit_tokens(salt_of(record.body), record.prompt_ids)
        missing = len(record.prompt_ids) - record.cached_tokens
        await asyncio.sleep(engine.settings.delay_s + missing * engine.settings.prefill_s_per_token)
        answer = engine.answer(record)
        if record.body.get("stream"):
            await self._stream(chunks_of(record.path, answer))
        else:
            await asyncio.sleep(engine.settings.chunk_delay_s * len(answer.pieces))
            await self._json(whole_of(record.path, answer))
        record.finished = True

    async def _stream(self, chunks: Iterable[bytes]) -> None:
        engine = self._engine
        cut = engine.faults.take_cut()
        await self._start(200, "text/event-stream; charset=utf-8")
        for sent, chunk in enumerate(chunks):
            if sent == cut:
                self._drop()
                return
            await engine.faults.everything.passed()
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
            await asyncio.sleep(engine.settings.chunk_delay_s)
        await self._send({"type": "http.response.body", "body": b""})

    async def _render(self, path: str) -> None:
        record = self._record(path)
        ids = self._engine.prompt_ids(path, record.body)
        record.prompt_ids = ids
        record.finished = True
        if path == "/tokenize":
            limit = self._engine.settings.max_model_len
            reply: Any = {"count": len(ids), "max_model_len": limit, "tokens": ids}
            reply["token_strs"] = None
        else:
            reply = rendered(record.body, ids, f"render-{len(ids)}")
        await self._json([reply] if path == "/v1/completions/render" else reply)

    def _record(self, path: str) -> RecordedRequest:
        """Records the request, then refuses it if it is not one of this server's."""
        headers = {name.decode(): value.decode("latin-1") for name, value in self._scope["headers"]}
        record = RecordedRequest(path=path, body={}, raw=self._raw, headers=headers)
        if self._engine.settings.records:
            self._engine.requests.append(record)
        if headers.get("content-type", "").partition(";")[0] != "application/json":
            raise EngineError(400, "Unsupported Media Type: Only 'application/json' is allowed")
        try:
            record.body = json.loads(self._raw)
        except ValueError as error:
            raise EngineError(400, f"JSON decode error: {error}") from None
        model = self._engine.settings.model
        asked = record.body.get("model") or model
        if asked != model:
            self._engine.give_back(record.body)
            text = f"The model `{asked}` does not exist. Valid aliases: {model}."
            raise EngineError(404, text, "model")
        return record

    def _drop(self) -> None:
        self._scope["extensions"]["drop"]()

    async def _json(self, value: object, status: int = 200) -> None:
        await self._bytes(json.dumps(value).encode(), "application/json", status)

    async def _bytes(self, body: bytes, content_type: str, status: int = 200) -> None:
        await self._start(status, content_type, len(body))
        await self._send({"type": "http.response.body", "body": body})

    async def _start(self, status: int, content_type: str, length: int | None = None) -> None:
        headers = [(b"content-type", content_type.encode())]
        if length is not None:
            headers.append((b"content-length", str(length).encode()))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


def _check_limits(body: dict[str, Any]) -> None:
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
        value = body.get(name)
        if value is not None and value < 1:
            raise EngineError(400, f"{name} must be at least 1, got {value}.", name)
