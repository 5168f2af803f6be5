"""Flow 2 over fake engines: when a job is extended, and that a switch finds what it computed."""

from __future__ import annotations

import json

import pytest

from engine.marks import PROBABILITY_KEY, SESSION_KEY, read_marks
from policy.vocabulary import Controller, RequestClass
from tests.coordinator.shadow_rig import (
    BLOCK,
    SEGMENT,
    a_rig,
    said,
    some_words,
    sse,
    until,
)

QUESTION = [said("system", "You help."), said("user", some_words(200))]
ANSWER = some_words(60, "a")
AFTER = [*QUESTION, said("assistant", ANSWER), said("user", "go on")]


async def test_a_job_is_extended_when_a_call_arrives_and_covers_the_whole_history_at_its_end() -> (
    None
):
    async with a_rig() as rig:
        session = rig.session()
        call = rig.call(session, "small", messages=QUESTION)
        await rig.idle()
        at_arrival = rig.cached(session, "large", QUESTION)
        assert at_arrival >= len(rig.prompt_ids("large", QUESTION)) - 2 * BLOCK
        rig.answer(session, call, ANSWER)
        await rig.idle()
        next_ids = rig.prompt_ids("large", AFTER)
        uncovered = len(next_ids) - rig.cached(session, "large", AFTER)
        # what cannot be known: the new message, and a part of a block
        assert uncovered <= BLOCK + len("[user] go on [/user][assistant] ")
        assert rig.segments("small") == []


async def test_a_job_grows_while_the_answer_streams_but_not_for_every_piece() -> None:
    async with a_rig(resubmit_tokens=128) as rig:
        session = rig.session()
        call = rig.call(session, "small", messages=QUESTION)
        await rig.idle()
        before = len(rig.segments("large"))
        text = some_words(100, "a")
        rig.flow.output_bytes(session, call, sse(content=text[:20]))
        rig.flow.output_bytes(session, call, sse(content=text[20:]))
        await until(lambda: len(rig.segments("large")) > before)
        await rig.idle()
        renders = rig.flow.counters.renders
        grown = [*QUESTION, said("assistant", text + " and more")]
        streamed = rig.cached(session, "large", grown)
        assert streamed >= len(rig.prompt_ids("large", QUESTION)) + len(text) - 2 * BLOCK - 16
        rig.flow.output_bytes(session, call, sse(content=" few"))
        feed = rig.flow._feeds[id(call)]
        await until(lambda: feed.new_text_bytes == len(" few"))
        await rig.idle()
        assert rig.flow.counters.renders == renders
        rig.flow.call_ended(session, call, ok=True)
        await rig.idle()
        assert rig.flow.counters.renders == renders + 2


async def test_segments_are_block_aligned_grow_by_at_most_one_segment_and_carry_our_marks() -> None:
    async with a_rig() as rig:
        session = rig.session()
        rig.call(session, "small", messages=QUESTION)
        await rig.idle()
        ends = rig.segments("large")
        assert len(ends) >= 3
        assert all(end % BLOCK == 0 for end in ends)
        assert all(b - a <= SEGMENT for a, b in zip([0, *ends], ends, strict=False))
        body = rig.engines["large"].generating()[0].body
        marks = read_marks(body["vllm_xargs"])
        assert marks.request_class is RequestClass.SHADOW
        assert marks.session_id == session.mark_id == "tenant-0:s1"
        assert 0 < body["vllm_xargs"][PROBABILITY_KEY] < 1
        assert SESSION_KEY in body["vllm_xargs"]
        assert body["cache_salt"] == session.cache_salt
        assert body["max_tokens"] == 1
        assert "kv_transfer_params" not in body


async def test_only_what_is_new_is_computed() -> None:
    async with a_rig() as rig:
        session = rig.session()
        rig.answer(session, rig.call(session, "small", messages=QUESTION), ANSWER)
        await rig.idle()
        first = session.warmth_of("large").computed_tokens
        covered = session.warmth_of("large").covered_tokens
        segments = len(rig.segments("large"))
        assert first == covered
        more = [*AFTER[:-1], said("user", some_words(50, "n"))]
        rig.answer(session, rig.call(session, "small", messages=more), "done")
        await rig.idle()
        warmth = session.warmth_of("large")
        assert warmth.computed_tokens - first <= warmth.covered_tokens - covered + 2 * BLOCK
        assert all(end > covered for end in rig.segments("large")[segments:])


async def test_a_rewritten_history_restarts_from_the_longest_common_prefix() -> None:
    async with a_rig() as rig:
        session = rig.session()
        rig.answer(session, rig.call(session, "small", messages=QUESTION), ANSWER)
        await rig.idle()
        compacted = [QUESTION[0], said("user", "Summary: " + some_words(90, "s"))]
        sent = len(rig.segments("large"))
        rig.answer(session, rig.call(session, "small", messages=compacted), "yes")
        await rig.idle()
        warmth = session.warmth_of("large")
        assert rig.segments("large")[sent] <= BLOCK + SEGMENT
        assert warmth.covered_tokens == rig.segments("large")[-1]
        assert rig.cached(session, "large", compacted) >= warmth.covered_tokens - 2 * BLOCK


async def test_after_a_switch_the_model_that_was_left_is_warmed_from_what_it_holds() -> None:
    async with a_rig() as rig:
        session = rig.session()
        question = [said("user", some_words(600))]
        after = [*question, *AFTER[2:]]
        rig.answer(session, rig.call(session, "small", messages=question), ANSWER)
        await rig.idle()
        # What pd_flow writes down, and what the engine's cache holds, after small's own call.
        ids = rig.prompt_ids("small", question)
        rig.engines["small"].cache.add(session.cache_salt, ids)
        own = session.warmth_of("small").own_tokens = len(ids) - len(ids) % BLOCK
        held = session.warmth_of("small")
        held.prefill_instance = held.decode_instance = "small"
        rig.call(session, "large", messages=after)
        await rig.idle()
        warmth = session.warmth_of("small")
        assert rig.segments("small")[0] > own > SEGMENT
        assert warmth.computed_tokens == warmth.covered_tokens - own
        assert rig.cached(session, "small", after) == warmth.covered_tokens


async def test_a_text_session_is_shadowed_by_its_prompt_and_output() -> None:
    async with a_rig() as rig:
        session = rig.session()
        call = rig.call(session, "small", prompt="Once " + some_words(80))
        chunk = {"choices": [{"index": 0, "text": some_words(40, " t")}]}
        rig.flow.output_bytes(session, call, b"data: " + json.dumps(chunk).encode() + b"\n\n")
        rig.flow.call_ended(session, call, ok=True)
        await rig.idle()
        whole = "Once " + some_words(80) + some_words(40, " t")
        engine = rig.engines["large"]
        ids = engine.vocabulary.encode(whole + " etc.")
        assert engine.cache.hit_tokens(session.cache_salt, ids) >= len(whole) - BLOCK


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"prompt": [1, 2, 3]}, "token_prompt"),
        ({"prompt": ["a", "b"]}, "batch_prompt"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"messages": QUESTION, "truncate_prompt_tokens": 10}, "truncated_prompt"),
        ({"messages": QUESTION, "continue_final_message": True}, "continued"),
        ({"messages": []}, "unreadable"),
        ({"messages": "hello"}, "unreadable"),
        ({"prompt": {"a": 1}}, "unreadable"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_call_that_another_model_could_not_read_is_left_out_with_its_reason(
    fields: dict[str, object], reason: str
) -> None:
    async with a_rig() as rig:
        session = rig.session()
        call = rig.call(session, "small", **fields)
        rig.answer(session, call, "x")
        await rig.idle()
        assert rig.flow.counters.skipped == {reason: 1}
        assert rig.engines["large"].requests == []


async def test_there_is_no_shadow_work_without_a_reason_for_it() -> None:
    async with a_rig(controller=Controller.OFF) as rig:
        rig.call(rig.session(), "small", messages=QUESTION)
        await rig.idle()
        assert rig.engines["large"].requests == []
    async with a_rig(models=("a", "b", "c", "d", "e"), controller=Controller.PREDICTIVE) as rig:
        rig.call(rig.session(), "a", messages=QUESTION)
        await rig.idle()
        assert rig.flow.counters.skipped == {"unlikely": 4}
    async with a_rig(min_switch_probability=0.6) as rig:
        rig.call(rig.session(), "small", messages=QUESTION)
        await rig.idle()
        assert rig.flow.counters.skipped == {"unlikely": 1}
        assert rig.engines["large"].requests == []
    async with a_rig() as rig:
        session = rig.session()
        session.shadow_enabled = False
        rig.answer(session, rig.call(session, "small", messages=QUESTION), ANSWER)
        await rig.idle()
        assert rig.engines["large"].requests == []


async def test_the_most_probable_models_are_shadowed_first_and_top_k_limits_them() -> None:
    async with a_rig(models=("small", "large", "huge"), top_k=1) as rig:
        session = rig.session()
        for model in ("small", "huge", "small", "huge"):
            rig.answer(session, rig.call(session, model, messages=QUESTION), ANSWER)
            await rig.idle()
        seen = len(rig.engines["large"].requests)
        rig.call(session, "small", messages=AFTER)
        await rig.idle()
        assert len(rig.engines["large"].requests) == seen
        assert session.warmth_of("huge").switch_probability > 0.5
        shown = rig.flow.snapshot(session)["huge"]
        assert shown["state"] == "idle"
        assert shown["covered_tokens"] == session.warmth_of("huge").covered_tokens > 0
