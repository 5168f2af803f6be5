"""The demo's client reads streams as they are, and a call that did not end well is never a row."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bench.demo.client import AgentClient, Limits, TokenCounter
from bench.demo.errors import CallFailed
from bench.fake_engine import FakeApp, create_app, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

QUESTION = [{"role": "user", "content": "How many tokens may a shadow chunk have? " * 20}]
LIMITS = Limits(max_tokens=5, min_tokens=2, ignore_eos=True)


@asynccontextmanager
async def a_client(app: FakeApp) -> AsyncIterator[AgentClient]:
    async with running(app) as url, aiohttp.ClientSession() as http:
        yield AgentClient(http, url, session_id="s-1", token="t-1", shadow=False)


async def test_a_call_gives_text_ids_counts_and_times() -> None:
    app = create_app(model="small", output_tokens=5, delay_s=0.05, chunk_delay_s=0.01)
    async with a_client(app) as client:
        first = await client.chat("small", QUESTION, LIMITS)
        second = await client.chat("small", QUESTION, LIMITS)
    engine = app.state.engine
    assert first.text == engine.vocabulary.decode(first.output_ids) != ""
    assert len(first.output_ids) == first.output_tokens == 5
    assert first.prompt_tokens == len(engine.requests[0].prompt_ids)
    assert (first.cached_tokens, second.cached_tokens > 0) == (0, True)
    assert 0.05 <= first.ttft_s < first.e2el_s
    assert first.finish_reason == "length"


async def test_what_the_client_sends_names_session_tenant_limits_and_shadow() -> None:
    app = create_app(model="small")
    async with a_client(app) as client:
        await client.chat("small", QUESTION, LIMITS)
    request = app.state.engine.requests[0]
    assert request.headers["authorization"] == "Bearer t-1"
    assert request.headers["x-session-id"] == "s-1"
    assert request.headers["x-shadowprefill-shadow"] == "off"
    sent = {name: request.body[name] for name in ("max_tokens", "min_tokens", "ignore_eos")}
    assert sent == {"max_tokens": 5, "min_tokens": 2, "ignore_eos": True}


def an_event(text: str, **fields: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "token_ids": [len(text)]}
    return (
        b"data: " + json.dumps({"choices": [choice | fields.pop("choice", {})]} | fields).encode()
    )


async def test_the_first_token_that_is_not_empty_counts_and_prompt_ids_may_be_long() -> None:
    """The first event of vLLM carries every prompt id: more than a line that aiohttp reads."""
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": None}
    events = [
        an_event("", prompt_token_ids=list(range(100_000))),
        an_event("ab"),
        an_event("cde", choice={"finish_reason": "stop"}),
        an_event("", choices=[], usage=usage),
        b"data: [DONE]",
    ]

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"x-shadowprefill-p-instance": "p0"})
        await response.prepare(request)
        for event in events:
            await response.write(event + b"\n\n")
            await asyncio.sleep(0.02)
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        url = str(server.make_url(""))
        client = AgentClient(http, url, session_id="s", token="t", shadow=True)
        reply = await client.chat("small", QUESTION, LIMITS)
    assert (reply.text, reply.output_ids, reply.finish_reason) == ("abcde", [0, 2, 3], "stop")
    assert reply.prompt_ids == list(range(100_000))
    assert reply.p_instance == "p0"
    assert 0.02 <= reply.ttft_s < reply.e2el_s - 0.02


async def test_a_refused_call_says_status_and_reason() -> None:
    async with a_client(create_app(model="small")) as client:
        with pytest.raises(CallFailed, match=r"HTTP 404.*`other` does not exist"):
            await client.chat("other", QUESTION, LIMITS)


async def test_a_stream_that_breaks_off_is_a_failed_call() -> None:
    app = create_app(model="small")
    app.state.engine.faults.die_mid_stream(after_chunks=3)
    async with a_client(app) as client:
        with pytest.raises(CallFailed, match="small"):
            await client.chat("small", QUESTION, LIMITS)


async def test_a_coordinator_that_is_not_there_is_a_failed_call() -> None:
    async with aiohttp.ClientSession() as http:
        client = AgentClient(http, "http://127.0.0.1:9", session_id="s", token="t", shadow=True)
        with pytest.raises(CallFailed, match=r"127\.0\.0\.1:9"):
            await client.chat("small", QUESTION, LIMITS)


async def test_history_is_counted_without_the_opening_of_the_next_answer() -> None:
    app = create_app(model="small")
    async with running(app) as url, aiohttp.ClientSession() as http:
        counter = TokenCounter(http, {"small": url})
        history = await counter.history("small", QUESTION)
        client = AgentClient(http, url, session_id="s", token="t", shadow=True)
        longer = [*QUESTION, {"role": "user", "content": "And why?"}]
        await client.chat("small", longer, LIMITS)
    engine = app.state.engine
    whole = engine.vocabulary.decode(engine.generating()[0].prompt_ids[:history])
    assert whole.endswith("<|im_end|>\n")
    assert whole.count("<|im_start|>") == 1
