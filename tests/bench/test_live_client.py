"""Normal traffic's client: exact lengths, one time per token, and failures that are failures."""

from __future__ import annotations

import aiohttp
import pytest

from bench.demo.errors import CallFailed
from bench.fake_engine import FakeApp, create_app, running
from bench.live.client import Completion, complete, within

PROMPT_IDS = list(range(1000, 1070))


async def a_completion(app: FakeApp, output_tokens: int = 5) -> Completion:
    async with running(app) as url, aiohttp.ClientSession() as http:
        return await complete(http, url, "small", PROMPT_IDS, output_tokens, "t-1", 1.25)


async def test_a_completion_has_exact_lengths_and_a_time_for_each_token() -> None:
    app = create_app(model="small", delay_s=0.05, chunk_delay_s=0.01)
    done = await a_completion(app)
    assert (done.prompt_tokens, done.output_tokens, len(done.token_s)) == (70, 5, 5)
    assert 0.05 <= done.ttft_s < done.e2el_s
    assert len(done.itl_s) == 4
    assert min(done.itl_s) > 0


async def test_it_names_its_tenant_and_the_slo_of_its_own_prompt() -> None:
    app = create_app(model="small")
    await a_completion(app)
    request = app.state.engine.requests[0]
    assert request.headers["authorization"] == "Bearer t-1"
    assert request.headers["x-shadowprefill-ttft-slo-ms"] == "1250"
    assert request.body["prompt"] == PROMPT_IDS
    assert "x-session-id" not in request.headers


async def test_an_error_or_a_stream_that_breaks_off_is_a_failed_call() -> None:
    app = create_app(model="small")
    app.state.engine.faults.fail_next(503)
    with pytest.raises(CallFailed, match="HTTP 503"):
        await a_completion(app)
    app.state.engine.faults.die_mid_stream(after_chunks=2)
    with pytest.raises(CallFailed, match="small"):
        await a_completion(app)


async def test_a_hanging_engine_is_a_failed_call() -> None:
    app = create_app(model="small", delay_s=5.0)
    with pytest.raises(CallFailed, match=r"r-1: no answer within 0\.05 s"):
        async with within(0.05, "r-1"):
            await a_completion(app)
