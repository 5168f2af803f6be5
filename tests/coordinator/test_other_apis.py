"""The Responses and the Messages API: the same call as a chat, in other words."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from coordinator.calls import CallKind
from tests.coordinator.api_calls import (
    NAMED,
    a_body,
    a_question,
    a_tool,
    answered,
    end_of,
    named_events,
    prompt_and_cached,
    streamed_text,
    text_in,
)
from tests.coordinator.call_rig import COLOCATED, PD, TWO_PD, a_coordinator, until

if TYPE_CHECKING:
    import httpx

    from tests.coordinator.call_rig import Rig

pytestmark = pytest.mark.parametrize("kind", NAMED)
JSON_TYPE = {"content-type": "application/json"}
BLOCK = 32
LONG = " ".join(f"w{number}" for number in range(100))


async def post(rig: Rig, kind: CallKind, body: dict[str, Any], **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await rig.client.post(kind.path, json=body, headers=named)


def message_of(kind: CallKind, reply: httpx.Response) -> str:
    """Of an error in the API's own shape."""
    told = reply.json()
    assert set(told["error"]) >= {"type", "message"}
    assert (told.get("type") == "error") == (kind is CallKind.MESSAGES)
    assert ("code" in told["error"]) == (kind is CallKind.RESPONSES)
    return str(told["error"]["message"])


async def test_p_computes_one_token_and_d_takes_over(kind: CallKind) -> None:
    async with a_coordinator(PD) as rig:
        body = a_body(
            kind, [a_question(LONG)], temperature=0, metadata={"user_id": "u"}, store=True
        )
        reply = await post(rig, kind, body, x_session_id="s")
        assert reply.status_code == 200
        (p,), (d,) = rig.calls("small-p"), rig.calls("small-d")
        assert p.path == d.path == kind.path
        assert p.body[kind.limit_field] == 1
        assert p.body["stream"] is False
        assert p.body["kv_transfer_params"]["do_remote_decode"] is True
        assert p.body["vllm_xargs"]["shadowprefill_class"]
        assert d.body[kind.limit_field] == 4
        assert d.body["kv_transfer_params"]["do_remote_prefill"] is True
        assert p.body["cache_salt"] == d.body["cache_salt"]
        assert d.body["metadata"] == {"user_id": "u"}
        if kind is CallKind.RESPONSES:
            assert (p.body["store"], d.body["store"]) == (False, False), "the client says true"
        assert p.prompt_ids == d.prompt_ids
        assert rig.engines["small-p"].pinned_handoffs == 0
        call = (await rig.client.get("/v1/sessions/s")).json()["calls"][0]
        assert (call["prompt_tokens"], call["cached_tokens"]) == prompt_and_cached(
            kind, reply.json()
        )
        assert call["output_tokens"] == 4
        assert call["finish_reason"] in ("max_tokens", "max_output_tokens")


@pytest.mark.parametrize("layout", [PD, COLOCATED], ids=["pd", "colocated"])
async def test_a_stream_says_the_same_as_a_whole_answer(
    kind: CallKind, layout: dict[str, Any]
) -> None:
    async with a_coordinator(layout) as rig:
        body = a_body(kind, [a_question()])
        whole = (await post(rig, kind, body, x_session_id="s")).json()
        reply = await post(rig, kind, body | {"stream": True}, x_session_id="s")
        assert reply.headers["content-type"].startswith("text/event-stream")
        events = named_events(reply.content)
        assert streamed_text(kind, events) == text_in(kind, whole)
        assert events[-1][0] == end_of(kind)
        first, second = (await rig.client.get("/v1/sessions/s")).json()["calls"]
        for name in ("prompt_tokens", "output_tokens", "finish_reason"):
            assert first[name] == second[name] is not None
        assert second["ttft_ms"] is not None


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_usage_tells_what_p_found_in_its_cache(kind: CallKind, stream: bool) -> None:
    async with a_coordinator(PD) as rig:
        body = a_body(kind, [a_question(LONG)])
        await post(rig, kind, body)
        rig.engines["small-d"].tells_cached_tokens = False
        reply = await post(rig, kind, body | {"stream": stream})
        told = reply.json() if not stream else _usage_event(kind, reply.content)
        tokens, cached = prompt_and_cached(kind, told)
        assert cached == rig.calls("small-p")[-1].cached_tokens > 0
        assert tokens == len(rig.calls("small-d")[-1].prompt_ids)


def _usage_event(kind: CallKind, stream: bytes) -> dict[str, Any]:
    events = dict(named_events(stream))
    if kind is CallKind.MESSAGES:
        return events["message_delta"]
    body: dict[str, Any] = events["response.completed"]["response"]
    return body


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kv_transfer_params", {"do_remote_prefill": True, "mine": 1}),
        ("ec_transfer_params", {"mine": 1}),
        ("vllm_xargs", {"mine": 1}),
        ("priority", -9),
        ("cache_salt", "another tenant's"),
        ("session_id", "mine"),
        ("request_id", "mine"),
    ],
)
async def test_a_clients_word_never_passes_for_ours(
    kind: CallKind, field: str, value: object
) -> None:
    async with a_coordinator(PD) as rig:
        reply = await post(rig, kind, a_body(kind, [a_question()], **{field: value}))
        assert reply.status_code == 200
        assert len(rig.all_calls()) == 2
        for call in rig.all_calls():
            sent = call.body.get(field)
            assert sent != value
            assert not isinstance(sent, dict) or "mine" not in sent
            assert call.headers.get("x-request-id") != value


PICTURES = {
    CallKind.MESSAGES: {"type": "image", "source": {"type": "url", "url": "http://pictures/1"}},
    CallKind.RESPONSES: {"type": "input_image", "image_url": "http://pictures/1"},
}
MORE = {
    CallKind.MESSAGES: {
        "tool_choice": {"type": "auto"},
        "output_config": {"format": {"type": "json_schema", "schema": {"z": 1}}},
    },
    CallKind.RESPONSES: {
        "text": {"format": {"type": "json_schema", "name": "x", "schema": {"z": 1}}},
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
    },
}


async def test_tools_pictures_schemas_and_logprobs_reach_d_untouched(kind: CallKind) -> None:
    text = "text" if kind is CallKind.MESSAGES else "input_text"
    message = {"role": "user", "content": [{"type": text, "text": "see"}, PICTURES[kind]]}
    more = MORE[kind] | {
        "tools": [a_tool(kind, "read"), a_tool(kind, "write")],
        "chat_template_kwargs": {"z": 1, "a": {"y": 1.0}},
    }
    body = a_body(kind, [message], **more)
    async with a_coordinator(PD) as rig:
        # With blanks, as no encoder of ours writes: what passes is the client's own text.
        raw = json.dumps(body, separators=(" , ", " : ")).encode()
        reply = await rig.client.post(kind.path, content=raw, headers=JSON_TYPE)
        assert reply.status_code == 200
        (d,) = rig.calls("small-d")
        for name in (kind.prompt_field, *more):
            assert json.dumps(body[name], separators=(" , ", " : ")).encode() in d.raw


async def test_a_call_that_extends_a_history_joins_its_session(kind: CallKind) -> None:
    async with a_coordinator(COLOCATED) as rig:
        question: Any = [a_question()]
        asked: Any = "hello there" if kind is CallKind.RESPONSES else question
        # As every client's library writes them: without blanks.
        body = json.dumps(a_body(kind, asked), separators=(",", ":"))
        first = await rig.client.post(kind.path, content=body, headers=JSON_TYPE)
        again = [*question, *answered(kind, first.json()), a_question("go on")]
        body = json.dumps(a_body(kind, again), separators=(",", ":"))
        second = await rig.client.post(kind.path, content=body, headers=JSON_TYPE)
        name = "x-shadowprefill-session-id"
        assert first.headers[name] == second.headers[name]
        other = await post(rig, kind, a_body(kind, [a_question("another")]))
        assert other.headers[name] not in (first.headers[name], second.headers[name])


@pytest.mark.parametrize(
    ("change", "status", "word"),
    [
        ({"model": "gpt-9"}, 404, "gpt-9"),
        ({"model": None}, 400, "model"),
        ({"stream": 1}, 400, "stream"),
        ({"input": 7, "messages": 7}, 400, "must be"),
        ({"max_tokens": 0, "max_output_tokens": 0}, 400, ">= 1"),
    ],
)
async def test_a_refusal_has_the_shape_of_the_api(
    kind: CallKind, change: dict[str, Any], status: int, word: str
) -> None:
    async with a_coordinator(COLOCATED) as rig:
        reply = await post(rig, kind, a_body(kind, [a_question()]) | change)
        assert reply.status_code == status
        assert word in message_of(kind, reply)
        assert not rig.all_calls()
        got = await rig.client.get(kind.path)
        assert (got.status_code, "POST" in message_of(kind, got)) == (405, True)


async def test_an_engines_refusal_keeps_its_words_and_gets_the_shape(kind: CallKind) -> None:
    async with a_coordinator(COLOCATED) as rig:
        rig.engines["small-1"].faults.fail_next(400)
        reply = await post(rig, kind, a_body(kind, [a_question()]))
        assert reply.status_code == 400
        assert "told to fail" in message_of(kind, reply)


@pytest.mark.parametrize("layout", [PD, COLOCATED], ids=["pd", "colocated"])
async def test_a_d_that_dies_mid_stream_gives_an_error_event_and_no_end(
    kind: CallKind, layout: dict[str, Any]
) -> None:
    async with a_coordinator(layout) as rig:
        d = "small-d" if "small-d" in layout else "small-1"
        rig.engines[d].faults.die_mid_stream(4)
        body = a_body(kind, [a_question()], stream=True)
        events = named_events((await post(rig, kind, body, x_session_id="s")).content)
        names = [name for name, _ in events]
        assert end_of(kind) not in names
        assert names[-1] == events[-1][1]["type"] == "error"
        if kind is CallKind.RESPONSES:
            numbers = [data["sequence_number"] for _, data in events]
            assert numbers == list(range(len(events)))
        assert d in json.dumps(events[-1][1])
        assert rig.hooks.ok == [False]
        assert (await rig.client.get("/v1/sessions/s")).json()["calls"][0]["error"]


async def test_a_p_leg_whose_client_left_is_aborted_by_its_id(
    kind: CallKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Or a leg that no id is found for would be let go all the same.
    monkeypatch.setattr("coordinator.orphans.LET_GO_S", 60.0)
    async with a_coordinator(PD) as rig:
        p = rig.engines["small-p"]
        p.faults.hang()
        task = asyncio.create_task(post(rig, kind, a_body(kind, [a_question()])))
        await until(lambda: p.running, "the P leg runs")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: p.cancelled == 1 and not p.running, "the P leg is aborted")
        p.faults.release()
        assert (await post(rig, kind, a_body(kind, [a_question()]))).status_code == 200
        assert p.pinned_handoffs == 0


async def test_a_switch_finds_its_shadow(kind: CallKind) -> None:
    # Shadow work that a busy machine makes late is lost, and says so.
    patient = {"connect_timeout_s": 30.0}
    async with a_coordinator(TWO_PD, shadow=True, limits=patient) as rig:
        asked = a_body(kind, [a_question(LONG)])
        first = (await post(rig, kind, asked, x_session_id="s")).json()
        flow = rig.app.state.shadow
        await until(lambda: flow.counters.pushes and not flow.running, "the shadow is there")
        again = [a_question(LONG), *answered(kind, first), a_question("go on")]
        switch = a_body(kind, again, model="large")
        told = (await post(rig, kind, switch, x_session_id="s")).json()
        tokens, cached = prompt_and_cached(kind, told)
        assert tokens - cached < 2 * BLOCK, "all but the new question"
        calls = (await rig.client.get("/v1/sessions/s")).json()["calls"]
        assert calls[-1]["shadow_tokens"] > 0
        assert not flow.counters.failed
        assert not flow.counters.skipped
