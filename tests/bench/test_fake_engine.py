"""The fake engine stands in for vLLM in the coordinator's tests: its own promises are kept here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import Any

import aiohttp
import pytest

from bench.fake_engine import FakeEngine, create_app, running, serve_in_thread
from kv_transport.kv_params import PREFILL_LEG_KV_PARAMS, remote_kv_of

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def a_chat(**fields: object) -> dict[str, Any]:
    messages = [{"role": "user", "content": "count the files of this repository, please"}]
    return {"model": "small", "messages": messages, "max_tokens": 4} | fields


async def post(url: str, path: str, body: object) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.post(url + path, json=body) as reply:
        return reply.status, await reply.json()


async def stream(url: str, body: object) -> list[Any]:
    """The events of a stream, `[DONE]` as a string."""
    async with aiohttp.ClientSession() as session, session.post(url + CHAT, json=body) as reply:
        text = (await reply.read()).decode()
    events = [event.removeprefix("data: ") for event in text.strip().split("\n\n")]
    return [event if event == "[DONE]" else json.loads(event) for event in events]


async def until(engine: FakeEngine, **expected: int) -> None:
    async with asyncio.timeout(5):
        # The engine runs on its own and signals nothing: poll, with the deadline above.
        while any(  # noqa: ASYNC110
            getattr(engine, name) != value for name, value in expected.items()
        ):
            await asyncio.sleep(0.001)


async def test_a_stream_and_a_whole_answer_carry_the_same_text_and_usage() -> None:
    app = create_app(model="small")
    async with running(app) as url:
        _, whole = await post(url, CHAT, a_chat())
        app.state.engine.cache.clear()
        events = await stream(url, a_chat(stream=True, stream_options={"include_usage": True}))
    deltas = [event["choices"][0]["delta"] for event in events[:-2]]
    assert (
        "".join(delta["content"] for delta in deltas) == (whole["choices"][0]["message"]["content"])
    )
    assert events[-3]["choices"][0]["finish_reason"] == "length"
    assert events[-2]["choices"] == []
    assert events[-2]["usage"] == whole["usage"]
    assert events[-1] == "[DONE]"


@pytest.mark.parametrize("asked", [True, False])
async def test_a_stream_names_the_prompts_tokens_once_if_it_was_asked_to(asked: bool) -> None:
    app = create_app(model="small")
    async with running(app) as url:
        chat = await stream(url, a_chat(stream=True, return_token_ids=asked))
    named = [event["prompt_token_ids"] for event in chat[:-1] if "prompt_token_ids" in event]
    assert named == [app.state.engine.requests[0].prompt_ids if asked else None]
    assert "prompt_token_ids" in chat[0]


async def test_usage_is_streamed_only_when_it_was_asked_for() -> None:
    async with running(create_app(model="small")) as url:
        events = await stream(url, a_chat(stream=True))
    assert not any("usage" in event for event in events[:-1])


@pytest.mark.parametrize(
    ("salt", "expected"), [("tenant-a", 32), ("tenant-b", 0)], ids=["same_salt", "other_salt"]
)
async def test_a_repeated_prompt_is_cached_per_salt_and_block_aligned(
    salt: str, expected: int
) -> None:
    prompt = list(range(1000, 1040))
    async with running(create_app(model="small", block_size=16)) as url:
        _, first = await post(url, TEXT, {"prompt": prompt, "cache_salt": "tenant-a"})
        _, again = await post(url, TEXT, {"prompt": prompt, "cache_salt": salt})
    assert first["usage"]["prompt_tokens_details"] is None
    details = again["usage"]["prompt_tokens_details"] or {"cached_tokens": 0}
    assert details["cached_tokens"] == expected


@pytest.mark.parametrize("vocabulary", ["words", "bytes"])
async def test_the_answer_of_a_turn_is_cached_for_the_next_turn(vocabulary: str) -> None:
    app = create_app(model="small", block_size=1, vocabulary=vocabulary)
    async with running(app) as url:
        _, first = await post(url, CHAT, a_chat(max_tokens=6))
        messages = [
            *a_chat()["messages"],
            first["choices"][0]["message"],
            {"role": "user", "content": "and now?"},
        ]
        _, second = await post(url, CHAT, a_chat(messages=messages))
    usage = first["usage"]
    computed = usage["prompt_tokens"] + usage["completion_tokens"] - 1
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= computed


@pytest.mark.parametrize("vocabulary", ["words", "bytes"])
async def test_render_gives_the_ids_of_the_same_chat(vocabulary: str) -> None:
    app = create_app(model="small", vocabulary=vocabulary)
    async with running(app) as url:
        _, rendered = await post(url, CHAT + "/render", a_chat())
        await post(url, CHAT, a_chat())
        _, tokenized = await post(url, "/tokenize", a_chat())
    assert rendered["token_ids"] == app.state.engine.requests[1].prompt_ids
    assert tokenized["tokens"] == rendered["token_ids"]
    assert tokenized["count"] == len(rendered["token_ids"])


async def test_two_vocabularies_share_no_prompt() -> None:
    async with (
        running(create_app(model="small", vocabulary="words")) as words_url,
        running(create_app(model="small", vocabulary="bytes")) as bytes_url,
    ):
        _, words = await post(words_url, CHAT + "/render", a_chat())
        _, of_bytes = await post(bytes_url, CHAT + "/render", a_chat())
    assert words["token_ids"][:2] != of_bytes["token_ids"][:2]


async def test_completions_render_answers_a_list() -> None:
    async with running(create_app(model="small")) as url:
        _, rendered = await post(url, TEXT + "/render", {"model": "small", "prompt": "one two"})
    assert len(rendered[0]["token_ids"]) == 2


async def test_a_handoff_is_read_once_and_its_tokens_are_not_computed_by_d() -> None:
    prefill = create_app(model="small", role="prefill")
    decode = create_app(model="small", role="decode")
    async with running(prefill) as prefill_url, running(decode) as decode_url:
        leg = a_chat(max_tokens=1, kv_transfer_params=PREFILL_LEG_KV_PARAMS)
        _, answer = await post(prefill_url, CHAT, leg)
        assert prefill.state.engine.pinned_handoffs == 1
        params = remote_kv_of(answer["kv_transfer_params"]).take()
        status, _ = await post(decode_url, CHAT, a_chat(kv_transfer_params=params))
        again, _ = await post(decode_url, CHAT, a_chat(kv_transfer_params=params))
    assert (status, again) == (200, 500)
    assert prefill.state.engine.pinned_handoffs == 0
    assert decode.state.engine.refused_handoffs == 1
    assert decode.state.engine.pulled_tokens == answer["usage"]["prompt_tokens"]


async def test_a_colocated_engine_has_no_connector() -> None:
    async with running(create_app(model="small")) as url:
        _, answer = await post(url, CHAT, a_chat(kv_transfer_params=PREFILL_LEG_KV_PARAMS))
    assert answer["kv_transfer_params"] is None


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (a_chat(model="huge"), 404, "model"),
        (a_chat(max_tokens=-1), 400, "max_tokens"),
        (a_chat(messages=[]), 400, "messages"),
        (a_chat(messages=[{"role": "user", "content": "a b c d " * 99}]), 400, "input_tokens"),
    ],
    ids=["unknown_model", "negative_max_tokens", "no_messages", "too_long"],
)
async def test_bad_requests_get_an_openai_error(
    body: dict[str, Any], status: int, param: str
) -> None:
    async with running(create_app(model="small", max_model_len=64)) as url:
        answered, reply = await post(url, CHAT, body)
    assert (answered, reply["error"]["code"], reply["error"]["param"]) == (status, status, param)


async def test_a_request_that_was_told_to_fail_fails_once() -> None:
    app = create_app(model="small")
    app.state.engine.faults.fail_next(503)
    async with running(app) as url:
        statuses = [(await post(url, CHAT, a_chat()))[0] for _ in range(2)]
    assert statuses == [503, 200]


async def test_a_hanging_request_counts_as_cancelled_when_the_client_leaves() -> None:
    app = create_app(model="small")
    engine = app.state.engine
    engine.faults.hang()
    async with running(app) as url:
        call = asyncio.create_task(post(url, CHAT, a_chat()))
        await until(engine, running=1)
        call.cancel()
        await until(engine, running=0, cancelled=1)
        engine.faults.release()
        status, _ = await post(url, CHAT, a_chat())
    assert status == 200
    assert [record.cancelled for record in engine.generating()] == [True, False]


async def test_a_frozen_engine_answers_nothing_until_it_is_thawed() -> None:
    app = create_app(model="small")
    app.state.engine.faults.freeze()
    async with running(app) as url, aiohttp.ClientSession() as session:
        health = asyncio.create_task(session.get(url + "/health"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(health), 0.05)
        app.state.engine.faults.thaw()
        assert (await health).status == 200


async def test_a_stream_that_dies_is_cut_and_not_ended() -> None:
    app = create_app(model="small")
    app.state.engine.faults.die_mid_stream(after_chunks=2)
    async with running(app) as url:
        with pytest.raises(aiohttp.ClientPayloadError):
            await stream(url, a_chat(stream=True))


async def test_a_dropped_request_loses_its_connection() -> None:
    app = create_app(model="small")
    app.state.engine.faults.drop_next()
    async with running(app) as url:
        with pytest.raises(aiohttp.ClientConnectionError):
            await post(url, CHAT, a_chat())


async def test_a_killed_engine_refuses_connections_until_it_is_served_again() -> None:
    app = create_app(model="small")
    async with running(app) as url:
        app.state.engine.faults.kill()
        await asyncio.sleep(0)
        with pytest.raises(aiohttp.ClientConnectionError):
            await post(url, CHAT, a_chat())
        async with running(app, port=int(url.rpartition(":")[2])) as again:
            assert (await post(again, CHAT, a_chat()))[0] == 200


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_of_the_last_moment_is_closed_with_the_server(turns: int) -> None:
    async with running(create_app(model="small")) as url:
        client = socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])))
        for _ in range(turns):
            await asyncio.sleep(0)
    with client, contextlib.suppress(ConnectionResetError):
        client.settimeout(5)
        assert client.recv(1) == b"", "still open"


async def test_a_tool_call_is_streamed_and_ends_the_answer() -> None:
    app = create_app(model="small", output_tokens=2)
    app.state.engine.tool_call = {"name": "list_files", "arguments": "{}"}
    async with running(app) as url:
        events = await stream(url, a_chat(stream=True))
    assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"
    calls = events[-3]["choices"][0]["delta"]["tool_calls"]
    assert calls[0]["function"]["name"] == "list_files"


def test_an_engine_can_be_served_from_a_thread() -> None:
    async def ask(url: str) -> int:
        return (await post(url, CHAT, a_chat()))[0]

    app = create_app(model="small")
    with serve_in_thread(app) as url:
        assert asyncio.run(ask(url)) == 200
    assert len(app.state.engine.requests) == 1
