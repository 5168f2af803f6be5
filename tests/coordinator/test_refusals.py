"""Bad input gives an OpenAI error object with the right status, and no engine generates."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.coordinator.call_rig import CHAT, PD, TEXT, a_chat, a_coordinator

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

JSON = {"content-type": "application/json"}
LONG = " ".join(["word"] * 400)


def error_of(reply: httpx.Response, status: int) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    error = reply.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert error["message"]
    return dict(error)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"model": "small", ', None),
        (b"", None),
        (b"[1]", None),
        (b'{"model": "small", "messages": [NaN]}', None),
        (b'{"model": "small", "messages": [{"role": "user", "content": "\xff"}]}', None),
        (b'{"messages": []}', "model"),
        (b'{"model": 7, "messages": []}', "model"),
        (b'{"model": "small"}', "messages"),
        (b'{"model": "small", "messages": "hello"}', "messages"),
        (json.dumps(a_chat(max_tokens=-1)).encode(), "max_tokens"),
        (json.dumps(a_chat(max_tokens=0)).encode(), "max_tokens"),
        (json.dumps(a_chat(max_tokens=1.5)).encode(), "max_tokens"),
        (json.dumps(a_chat(max_tokens=True)).encode(), "max_tokens"),
        (json.dumps(a_chat(max_completion_tokens=-5)).encode(), "max_completion_tokens"),
        (json.dumps(a_chat(min_tokens=-1)).encode(), "min_tokens"),
        (json.dumps(a_chat(min_tokens=9)).encode(), "min_tokens"),
        (json.dumps(a_chat(stream="yes")).encode(), "stream"),
        (json.dumps(a_chat(stream_options={})).encode(), "stream_options"),
        (json.dumps(a_chat(stream=True, stream_options=3)).encode(), "stream_options"),
        (json.dumps(a_chat(session_id=3)).encode(), "session_id"),
        (json.dumps(a_chat(session_id="a\nb")).encode(), "session_id"),
    ],
)
async def test_an_invalid_body_is_a_400(body: bytes, param: str | None) -> None:
    async with a_coordinator(PD) as rig:
        error = error_of(await rig.client.post(CHAT, content=body, headers=JSON), 400)
        assert error["param"] == param
        assert error["type"] == "invalid_request_error"
        assert rig.all_calls() == []


async def test_an_unknown_model_is_a_404() -> None:
    async with a_coordinator(PD) as rig:
        error = error_of(await rig.chat(a_chat(model="gpt-9")), 404)
        assert error["code"] == "model_not_found"
        assert "gpt-9" in error["message"]
        assert rig.all_calls() == []
        assert (await rig.client.get("/v1/sessions")).json()["data"] == []


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", None])
async def test_another_content_type_is_a_415(content_type: str | None) -> None:
    async with a_coordinator(PD) as rig:
        headers = {} if content_type is None else {"content-type": content_type}
        body = json.dumps(a_chat()).encode()
        error_of(await rig.client.post(CHAT, content=body, headers=headers), 415)
        assert rig.all_calls() == []


@pytest.mark.parametrize("announced", [True, False], ids=["content_length", "chunked"])
async def test_a_huge_body_is_a_413(announced: bool) -> None:
    async with a_coordinator(PD, limits={"max_body_bytes": 4096}) as rig:
        raw = json.dumps(a_chat("x" * 20_000)).encode()

        async def pieces() -> AsyncIterator[bytes]:
            for at in range(0, len(raw), 1000):
                yield raw[at : at + 1000]

        content = raw if announced else pieces()
        error = error_of(await rig.client.post(CHAT, content=content, headers=JSON), 413)
        assert "4096" in error["message"]
        assert rig.all_calls() == []
        assert (await rig.chat(a_chat())).status_code == 200


async def test_another_method_is_a_405() -> None:
    async with a_coordinator(PD) as rig:
        error_of(await rig.client.get(CHAT), 405)
        error_of(await rig.client.get("/finish_session?session_id=x"), 405)


async def test_an_unknown_path_is_an_openai_error_too() -> None:
    async with a_coordinator(PD) as rig:
        error_of(await rig.client.get("/v1/nothing"), 404)


async def test_an_unknown_session_is_a_404() -> None:
    async with a_coordinator(PD) as rig:
        error_of(await rig.client.get("/v1/sessions/nobody"), 404)
        error_of(await rig.client.post("/finish_session?session_id=nobody"), 404)


async def test_finish_session_without_an_id_is_a_400() -> None:
    async with a_coordinator(PD) as rig:
        error_of(await rig.client.post("/finish_session"), 400)


async def test_a_prompt_that_cannot_fit_is_refused_before_any_engine() -> None:
    async with a_coordinator(PD, models={"small": {"max_model_len": 128}}) as rig:
        error = error_of(await rig.chat(a_chat("x" * (128 * 1024 + 1))), 400)
        assert error["code"] == "context_length_exceeded"
        assert "128" in error["message"]
        ids = {"model": "small", "prompt": list(range(129)), "max_tokens": 1}
        error_of(await rig.client.post(TEXT, json=ids), 400)
        assert rig.all_calls() == []


@pytest.mark.parametrize(
    "fields",
    [
        {"truncate_prompt_tokens": 50},
        {"messages": [{"role": "user", "content": [{"image_url": {}}]}]},
    ],
    ids=["truncated", "an_image"],
)
async def test_a_long_body_that_may_fit_is_the_engines_to_judge(fields: dict[str, Any]) -> None:
    async with a_coordinator(PD, models={"small": {"max_model_len": 128}}) as rig:
        body = a_chat("x " * 150_000) | fields
        if "messages" in fields:
            body["messages"][0]["content"].append({"type": "text", "text": "x " * 150_000})
        await rig.chat(body)
        assert len(rig.all_calls()) == 1


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_an_over_long_prompt_is_the_engines_400_passed_on(stream: bool) -> None:
    async with a_coordinator(PD, engine={"max_model_len": 256}) as rig:
        error = error_of(await rig.chat(a_chat(LONG, stream=stream)), 400)
        assert "maximum context length is 256" in error["message"]
        assert len(rig.calls("small-p")) == 1
        assert rig.calls("small-d") == [], "what P rejects, D is not asked"


async def test_the_engines_own_rejection_is_not_tried_elsewhere() -> None:
    layout = {"a": ("small", "colocated"), "b": ("small", "colocated")}
    async with a_coordinator(layout) as rig:
        for name in layout:
            rig.engines[name].faults.fail_next(422)
        error_of(await rig.chat(a_chat()), 422)
        assert len(rig.all_calls()) == 1


async def test_a_client_that_leaves_while_its_body_is_on_the_way_costs_nothing() -> None:
    async with a_coordinator(PD) as rig:
        host, _, port = rig.url.removeprefix("http://").partition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: 1000\r\n\r\n{{".encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await rig.chat(a_chat())).status_code == 200
        assert len(rig.calls("small-p")) == 1
