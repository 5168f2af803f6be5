"""Normal traffic's side of HTTP: one streamed text completion, timed token by token.

The prompt goes out as token ids, so its length is exact, and ids are asked back: the first token
is the first id, even if its text is empty. Sessions use bench.demo.client.AgentClient."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from bench.demo.client import Usage, reason_of, refusal_of, sse_events
from bench.demo.errors import CallFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


@dataclass(slots=True)
class Completion:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    token_s: list[float] = field(default_factory=list)
    """When each piece of output arrived, from the sending."""
    e2el_s: float = 0.0
    instance: str = ""

    @property
    def ttft_s(self) -> float:
        return self.token_s[0]

    @property
    def itl_s(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.token_s)]


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: Any = None


TTFT_SLO_HEADER = "x-shadowprefill-ttft-slo-ms"
_decode = msgspec.json.Decoder(_Chunk).decode


@asynccontextmanager
async def within(limit_s: float, what: str) -> AsyncIterator[None]:
    """Raises CallFailed for what takes longer."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError:
        raise CallFailed(f"{what}: no answer within {limit_s:g} s") from None


async def complete(
    http: aiohttp.ClientSession,
    base_url: str,
    model: str,
    prompt_ids: Sequence[int],
    output_tokens: int,
    token: str,
    ttft_slo_s: float | None = None,
) -> Completion:
    """Exactly `output_tokens` tokens; raises CallFailed unless the stream ended as it must."""
    body = {
        "model": model,
        "prompt": prompt_ids,
        "max_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    url = f"{base_url}/v1/completions"
    headers = {"authorization": f"Bearer {token}"}
    if ttft_slo_s is not None:
        headers[TTFT_SLO_HEADER] = f"{1e3 * ttft_slo_s:.0f}"
    sent_s = time.perf_counter()
    try:
        async with http.post(url, json=body, headers=headers) as response:
            if response.status != 200:
                raise CallFailed(f"{url} ({model}): {await refusal_of(response)}")
            return await _read(response, sent_s, f"{url} ({model})")
    except (aiohttp.ClientError, TimeoutError) as error:
        raise CallFailed(f"{url} ({model}): {reason_of(error)}") from error


async def _read(response: aiohttp.ClientResponse, sent_s: float, what: str) -> Completion:
    done = Completion(instance=response.headers.get("x-shadowprefill-p-instance", ""))
    usage: Usage | None = None
    async for data in sse_events(response):
        if data == b"[DONE]":
            break
        chunk = _decoded(data, what)
        usage = chunk.usage or usage
        if any(choice.token_ids for choice in chunk.choices):
            done.token_s.append(time.perf_counter() - sent_s)
    else:
        raise CallFailed(f"{what}: the stream ended without [DONE]")
    done.e2el_s = time.perf_counter() - sent_s
    if usage is None or not done.token_s:
        raise CallFailed(f"{what}: a stream without usage or tokens")
    done.prompt_tokens, done.output_tokens = usage.prompt_tokens, usage.completion_tokens
    details = usage.prompt_tokens_details
    done.cached_tokens = (details.cached_tokens or 0) if details else 0
    return done


def _decoded(data: bytes, what: str) -> _Chunk:
    try:
        chunk = _decode(data)
    except msgspec.DecodeError as error:
        raise CallFailed(f"{what}: unreadable event {data[:200]!r}: {error}") from error
    if chunk.error is not None:
        raise CallFailed(f"{what}: the stream broke off with {chunk.error}")
    return chunk
