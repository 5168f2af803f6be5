"""The agent's side of HTTP: streamed calls timed as a client sees them, and exact token counts.

TTFT is the arrival of the first non-empty token minus the moment of sending. Token ids are asked
for (`return_token_ids`), so "the same prompt" and "the same output" are statements about tokens."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import aiohttp
import msgspec

from bench.demo.errors import CallFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager

Message = dict[str, str]
T = TypeVar("T")


class SessionCall(msgspec.Struct):
    """One call in the coordinator's own account of a session."""

    call: int
    shadow_tokens: int = 0
    p_leg_ms: float | None = None
    p_queue_ms: float | None = None
    d_leg_ms: float | None = None


class ShadowState(msgspec.Struct):
    state: str = "idle"


class SessionView(msgspec.Struct):
    """The part of `GET /v1/sessions/{id}` that the demo reads."""

    calls: list[SessionCall]
    shadows: dict[str, ShadowState]
    shadow_tokens_computed: int
    shadow_tokens_used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long an output may be."""

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False

    def to_body(self) -> dict[str, Any]:
        return {
            "max_tokens": self.max_tokens,
            "min_tokens": self.min_tokens,
            "ignore_eos": self.ignore_eos,
        }


@dataclass(slots=True, kw_only=True)
class Reply:
    text: str = ""
    output_ids: list[int] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    ttft_s: float = 0.0
    e2el_s: float = 0.0
    finish_reason: str = ""
    p_instance: str = ""
    d_instance: str = ""
    d_queue_ms: float | None = None
    """How long the call waited in D, for its KV too; None: the engine does not tell."""


class AgentClient:
    """One session of one tenant: its bearer token is new, so its caches are empty."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        base_url: str,
        *,
        session_id: str,
        token: str,
        shadow: bool,
    ) -> None:
        self._http = http
        self._base_url = base_url.rstrip("/")
        self.session_id = session_id
        self._headers = {
            "authorization": f"Bearer {token}",
            "x-session-id": session_id,
            "x-shadowprefill-shadow": "on" if shadow else "off",
        }

    async def chat(self, model: str, messages: Sequence[Message], limits: Limits) -> Reply:
        """One streamed call; raises CallFailed unless it ended as a stream must."""
        body = {
            "model": model,
            "messages": list(messages),
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        } | limits.to_body()
        url = f"{self._base_url}/v1/chat/completions"
        sent_s = time.perf_counter()
        try:
            async with self._http.post(url, json=body, headers=self._headers) as response:
                if response.status != 200:
                    raise CallFailed(f"{url} ({model}): {await refusal_of(response)}")
                return await _read_stream(response, sent_s, what=f"{url} ({model})")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise CallFailed(f"{url} ({model}): {reason_of(error)}") from error

    async def session(self) -> SessionView:
        url = f"{self._base_url}/v1/sessions/{self.session_id}"
        return await _fetch(self._http.get(url, headers=self._headers), url, SessionView)

    async def settle(self, timeout_s: float) -> SessionView:
        """The session's account once no shadow of it runs, or after `timeout_s`.

        Only called after the last step: what a shadow computes then is waste, and counts."""
        deadline_s = time.perf_counter() + timeout_s
        while True:
            view = await self.session()
            idle = all(shadow.state == "idle" for shadow in view.shadows.values())
            if idle or time.perf_counter() > deadline_s:
                return view
            await asyncio.sleep(0.25)

    async def finish(self) -> None:
        url = f"{self._base_url}/finish_session"
        query = {"session_id": self.session_id}
        await _fetch(self._http.post(url, params=query, headers=self._headers), url, msgspec.Raw)


class _Count(msgspec.Struct):
    count: int


class TokenCounter:
    """Exact prompt lengths from the engines' own front ends, one URL per model."""

    def __init__(self, http: aiohttp.ClientSession, urls: dict[str, str]) -> None:
        self._http = http
        self._urls = urls

    async def text(self, model: str, text: str) -> int:
        return await self._count(model, {"prompt": text, "add_special_tokens": False})

    async def history(self, model: str, messages: Sequence[Message]) -> int:
        """Tokens of finished messages, without the opening of the answer that would come next."""
        body = {"messages": list(messages), "add_generation_prompt": False}
        return await self._count(model, body)

    async def _count(self, model: str, body: dict[str, Any]) -> int:
        url = f"{self._urls[model]}/tokenize"
        request = self._http.post(url, json={"model": model} | body)
        return (await _fetch(request, url, _Count)).count


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class CachedTokens(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: CachedTokens | None = None


class _Metrics(msgspec.Struct):
    queue_time_ms: float | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    metrics: _Metrics | None = None
    prompt_token_ids: list[int] | None = None
    error: Any = None


async def _read_stream(response: aiohttp.ClientResponse, sent_s: float, what: str) -> Reply:
    reply = Reply(
        p_instance=response.headers.get("x-shadowprefill-p-instance", ""),
        d_instance=response.headers.get("x-shadowprefill-d-instance", ""),
    )
    usage: Usage | None = None
    async for data in sse_events(response):
        if data == b"[DONE]":
            break
        chunk = _decoded(data, what)
        usage = chunk.usage or usage
        _take(reply, chunk, time.perf_counter() - sent_s)
    else:
        raise CallFailed(f"{what}: the stream ended without [DONE] after {reply.text!r}")
    reply.e2el_s = time.perf_counter() - sent_s
    if usage is None or not usage.completion_tokens or not reply.finish_reason:
        raise CallFailed(f"{what}: a stream without usage, tokens or finish_reason: {reply}")
    reply.ttft_s = reply.ttft_s or reply.e2el_s
    reply.prompt_tokens = usage.prompt_tokens
    reply.output_tokens = usage.completion_tokens
    details = usage.prompt_tokens_details
    reply.cached_tokens = (details.cached_tokens or 0) if details else 0
    return reply


async def sse_events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The data of each SSE event. The first holds all prompt ids: too long for `readline`."""
    pending = b""
    async for piece in response.content.iter_any():
        *lines, pending = (pending + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


def _decoded(data: bytes, what: str) -> _Chunk:
    try:
        chunk = msgspec.json.decode(data, type=_Chunk)
    except msgspec.DecodeError as error:
        raise CallFailed(f"{what}: unreadable event {data[:200]!r}: {error}") from error
    if chunk.error is not None:
        raise CallFailed(f"{what}: the stream broke off with {chunk.error}")
    return chunk


def _take(reply: Reply, chunk: _Chunk, elapsed_s: float) -> None:
    if chunk.prompt_token_ids is not None:
        reply.prompt_ids = chunk.prompt_token_ids
    if chunk.metrics is not None:
        reply.d_queue_ms = chunk.metrics.queue_time_ms
    for choice in chunk.choices:
        if choice.delta.content:
            reply.ttft_s = reply.ttft_s or elapsed_s
            reply.text += choice.delta.content
        reply.output_ids.extend(choice.token_ids or ())
        reply.finish_reason = choice.finish_reason or reply.finish_reason


async def _fetch(
    request: AbstractAsyncContextManager[aiohttp.ClientResponse], url: str, kind: type[T]
) -> T:
    try:
        async with request as response:
            if response.status != 200:
                raise CallFailed(f"{url}: {await refusal_of(response)}")
            return msgspec.json.decode(await response.read(), type=kind)
    except msgspec.DecodeError as error:
        raise CallFailed(f"{url}: unreadable answer: {error}") from error
    except (aiohttp.ClientError, TimeoutError) as error:
        raise CallFailed(f"{url}: {reason_of(error)}") from error


async def refusal_of(response: aiohttp.ClientResponse) -> str:
    return f"HTTP {response.status}: {(await response.text())[:500]}"


def reason_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
