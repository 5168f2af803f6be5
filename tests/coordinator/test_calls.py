"""A call through the coordinator: both legs, what the engines see, what the client gets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.marks import read_marks
from policy.vocabulary import RequestClass
from tests.coordinator.call_rig import (
    CHAT,
    COLOCATED,
    PD,
    TEXT,
    TWO_PD,
    a_chat,
    a_coordinator,
    events_of,
    text_of,
)


async def test_a_pd_call_prefills_on_p_and_decodes_on_d() -> None:
    async with a_coordinator(PD) as rig:
        reply = await rig.chat(a_chat(max_tokens=5))
        assert reply.status_code == 200
        assert len(reply.json()["choices"][0]["message"]["content"].split()) == 5
        (prefill,), (decode,) = rig.calls("small-p"), rig.calls("small-d")
        assert prefill.body["max_tokens"] == 1
        assert prefill.body["stream"] is False
        assert prefill.body["kv_transfer_params"]["do_remote_decode"] is True
        assert decode.body["max_tokens"] == 5
        handed = decode.body["kv_transfer_params"]
        assert handed["do_remote_prefill"] is True
        assert handed["remote_engine_id"] == rig.engines["small-p"].engine_id
        assert rig.engines["small-p"].pinned_handoffs == 0
        assert reply.headers["x-shadowprefill-p-instance"] == "small-p"
        assert reply.headers["x-shadowprefill-d-instance"] == "small-d"
        assert reply.headers["x-shadowprefill-model"] == "small"


async def test_a_hand_off_is_relayed_opaquely() -> None:
    async with a_coordinator(PD) as rig:
        await rig.chat(a_chat())
        handed = rig.calls("small-d")[0].body["kv_transfer_params"]
        assert {"tp_size", "remote_block_ids", "remote_request_id", "transfer_mode"} <= set(handed)


async def test_the_prefill_leg_carries_nothing_that_only_decode_may_have() -> None:
    async with a_coordinator(PD) as rig:
        body = a_chat(
            max_completion_tokens=6,
            min_tokens=2,
            stream=True,
            stream_options={"include_usage": True},
        )
        await rig.chat(body)
        (prefill,), (decode,) = rig.calls("small-p"), rig.calls("small-d")
        assert not {"max_completion_tokens", "min_tokens", "stream_options"} & set(prefill.body)
        assert decode.body["max_completion_tokens"] == 6
        assert decode.body["min_tokens"] == 2


async def test_both_legs_carry_the_tenants_salt_and_the_marks() -> None:
    async with a_coordinator(TWO_PD, limits={"engine_secret": "s3"}) as rig:
        await rig.chat(a_chat(), authorization="Bearer one", x_session_id="s")
        await rig.chat(a_chat(), authorization="Bearer two", x_session_id="s")
        for instance in ("small-p", "small-d"):
            one, two = rig.calls(instance)
            assert len(one.body["cache_salt"]) == 64
            assert one.body["cache_salt"] != two.body["cache_salt"]
            marks = read_marks(one.body["vllm_xargs"], "s3")
            assert marks.request_class is RequestClass.ROUTED
            other = read_marks(two.body["vllm_xargs"], "s3")
            assert marks.session_id.endswith(":s")
            assert marks.session_id != other.session_id, "ids are the tenants' own"
            assert marks.tpot_s == 0.2
            assert marks.ttft_budget_s is not None
            assert 0 < marks.ttft_budget_s <= 5.0


async def test_a_colocated_call_is_one_request() -> None:
    async with a_coordinator(COLOCATED) as rig:
        reply = await rig.chat(a_chat(model="large"))
        assert reply.status_code == 200
        (call,) = rig.all_calls()
        assert call.body["model"] == "large"
        assert "kv_transfer_params" not in call.body
        assert reply.headers["x-shadowprefill-p-instance"] == "large-1"
        assert reply.headers["x-shadowprefill-d-instance"] == "large-1"


@pytest.mark.parametrize("layout", [PD, COLOCATED], ids=["pd", "colocated"])
async def test_messages_and_tools_reach_every_engine_byte_for_byte(layout: dict[str, Any]) -> None:
    messages = b'[ {"content":"\\u00e9\\u2028 x/\\/y","role":"user" , "z":1.0, "a" :1e2} ]'
    tools = b'[{"type": "function","function":{"parameters":{"b":1,"a":2},"name":"f"}}]'
    raw = b'{"max_tokens":3,"messages":%s, "tools" :%s,"model":"small"}' % (messages, tools)
    async with a_coordinator(layout) as rig:
        reply = await rig.client.post(
            CHAT, content=raw, headers={"content-type": "application/json; charset=utf-8"}
        )
        assert reply.status_code == 200
        assert rig.all_calls()
        for call in rig.all_calls():
            assert messages in call.raw
            assert tools in call.raw


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kv_transfer_params", {"do_remote_prefill": True, "remote_host": "10.6.6.6"}),
        ("ec_transfer_params", {"peer_host": "10.6.6.6"}),
        ("vllm_xargs", {"shadowprefill_class": "shadow", "mine": 1}),
        ("priority", -7),
        ("cache_salt", "another tenant's"),
        ("session_id", "mine"),
        ("request_id", "forged"),
    ],
)
@pytest.mark.parametrize("layout", [PD, COLOCATED], ids=["pd", "colocated"])
async def test_a_clients_field_never_reaches_an_engine(
    layout: dict[str, Any], field: str, value: object
) -> None:
    # The second spelling of the key is the same key to the engine's parser.
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in field)
    for key in (field, escaped):
        async with a_coordinator(layout) as rig:
            body = json.dumps(a_chat())[:-1] + f', "{key}": {json.dumps(value)}}}'
            reply = await rig.client.post(
                CHAT, content=body, headers={"content-type": "application/json"}
            )
            assert reply.status_code == 200
            assert rig.all_calls()
            for call in rig.all_calls():
                sent = call.body.get(field)
                assert sent != value
                assert not isinstance(sent, dict) or "mine" not in sent
                if field in ("priority", "session_id", "ec_transfer_params"):
                    assert field not in call.body


@pytest.mark.parametrize(
    "header",
    ["x-prefiller-host-port", "x-data-parallel-host-port", "x-data-parallel-rank", "forwarded"],
)
async def test_a_clients_header_never_reaches_an_engine(header: str) -> None:
    async with a_coordinator(PD) as rig:
        await rig.client.post(CHAT, json=a_chat(), headers={header: "10.6.6.6:1", "host": "evil"})
        for call in rig.all_calls():
            assert header not in call.headers
            assert call.headers["host"].startswith("127.0.0.1")


@pytest.mark.parametrize("wanted", [True, False], ids=["asked", "not_asked"])
async def test_the_usage_chunk_is_there_only_if_the_client_asked(wanted: bool) -> None:
    async with a_coordinator(PD) as rig:
        options = {"stream_options": {"include_usage": True}} if wanted else {}
        body = a_chat(stream=True, max_tokens=6, **options)
        reply = await rig.chat(body, x_session_id="s")
        assert reply.headers["content-type"].startswith("text/event-stream")
        events = events_of(reply.content)
        assert events[-1] == "[DONE]"
        usages = [event for event in events[:-1] if event.get("usage")]
        assert len(usages) == wanted
        if wanted:
            assert events[-2] is usages[0]
            assert usages[0]["usage"]["completion_tokens"] == 6
        assert len(text_of(events).split()) == 6
        assert [event["choices"][0]["finish_reason"] for event in events[:-1] if event["choices"]][
            -1
        ] == "length"
        session = (await rig.client.get("/v1/sessions/s")).json()
        assert session["calls"][0]["output_tokens"] == 6
        assert session["calls"][0]["finish_reason"] == "length"


async def test_a_stream_says_the_same_as_a_whole_answer() -> None:
    async with a_coordinator(PD) as rig:
        whole = await rig.chat(a_chat(max_tokens=8))
        stream = await rig.chat(a_chat(max_tokens=8, stream=True))
        said = whole.json()["choices"][0]["message"]["content"]
        assert text_of(events_of(stream.content)) == said


async def test_usage_names_what_p_found_in_its_cache() -> None:
    async with a_coordinator(PD) as rig:
        text = " ".join(f"w{at}" for at in range(200))
        first = await rig.chat(a_chat(text), x_session_id="s")
        again = await rig.chat(a_chat(text), x_session_id="s")
        assert not (first.json()["usage"]["prompt_tokens_details"] or {}).get("cached_tokens")
        assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] >= 192
        rows = (await rig.client.get("/v1/sessions/s")).json()["calls"]
        assert [row["cached_tokens"] for row in rows] == [0, rig.calls("small-p")[1].cached_tokens]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_usage_is_ps_number_even_where_d_reports_its_own(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_coordinator(PD) as rig:
        d = rig.engines["small-d"]
        pull = d._pull

        def pull_and_boast(record: Any) -> int | None:
            return None if pull(record) is None else 4242

        monkeypatch.setattr(d, "_pull", pull_and_boast)
        body = a_chat(stream=stream)
        if stream:
            body["stream_options"] = {"include_usage": True}
        reply = await rig.chat(body)
        usage = (events_of(reply.content)[-2] if stream else reply.json())["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0


async def test_text_completions_go_the_same_way() -> None:
    async with a_coordinator(PD) as rig:
        body = {"model": "small", "prompt": "once upon a time", "max_tokens": 3}
        reply = await rig.client.post(TEXT, json=body)
        assert len(reply.json()["choices"][0]["text"].split()) == 3
        assert rig.calls("small-p")[0].path == TEXT
        assert "x-shadowprefill-session-id" not in reply.headers


@pytest.mark.parametrize(
    "fields",
    [{"n": 2}, {"prompt_logprobs": 0}, {"echo": True}, {"use_beam_search": True}],
    ids=["n", "prompt_logprobs", "echo", "use_beam_search"],
)
async def test_what_one_hand_off_cannot_serve_is_computed_by_d_alone(
    fields: dict[str, Any],
) -> None:
    async with a_coordinator(PD) as rig:
        reply = await rig.chat(a_chat(**fields))
        assert reply.status_code == 200
        assert rig.calls("small-p") == []
        assert "kv_transfer_params" not in rig.calls("small-d")[0].body
        assert reply.headers["x-shadowprefill-p-instance"] == "small-d"


async def test_the_hooks_see_the_call_and_its_bytes() -> None:
    async with a_coordinator(TWO_PD) as rig:
        reply = await rig.chat(a_chat(stream=True), x_session_id="s")
        assert rig.hooks.events == [("started", "s", "small"), ("ended", "s", "small")]
        assert rig.hooks.ok == [True]
        assert text_of(events_of(rig.hooks.output)) == text_of(events_of(reply.content))


async def test_a_session_keeps_to_its_instances() -> None:
    layout = {f"p{at}": ("small", "prefill") for at in range(3)}
    layout |= {f"d{at}": ("small", "decode") for at in range(3)}
    async with a_coordinator(layout) as rig:
        seen: dict[str, set[str]] = {}
        for session in "abcdefgh":
            for _ in range(3):
                reply = await rig.chat(a_chat(), x_session_id=session)
                pair = reply.headers["x-shadowprefill-p-instance"]
                pair += reply.headers["x-shadowprefill-d-instance"]
                seen.setdefault(session, set()).add(pair)
        assert all(len(pairs) == 1 for pairs in seen.values())
        assert len(set.union(*seen.values())) > 1, "idle instances share the sessions"
