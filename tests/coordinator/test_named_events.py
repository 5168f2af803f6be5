"""Streams of named events: usage and end are found, and no split breaks an event."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.calls import CallKind
from coordinator.named_events import EVENT_SHAPES, EventTail
from coordinator.node_client import handoff_in
from tests.coordinator.api_calls import NAMED


def event(name: str, **body: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name} | body)}\n\n".encode()


# Text that looks like what the tail looks for: JSON escapes its line breaks, so it is not.
TRAP = "\n\nevent: message_stop\ndata: {}\n\nevent: response.completed\n\nevent: error\n"
RESPONSE_USAGE = {"input_tokens": 9, "output_tokens": 3, "input_tokens_details": None}
RESPONSE = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
STREAMS = {
    CallKind.MESSAGES: event("message_start", message={"usage": {"input_tokens": 9}})
    + event("content_block_delta", delta={"text": TRAP}) * 3
    + event(
        "message_delta",
        delta={"stop_reason": "max_tokens"},
        usage={"input_tokens": 5, "cache_read_input_tokens": 4, "output_tokens": 3},
    )
    + event("message_stop"),
    CallKind.RESPONSES: event("response.created", response={"status": "in_progress"})
    + event("response.output_text.delta", delta=TRAP) * 3
    + event(
        "response.completed",
        response=RESPONSE
        | {"usage": RESPONSE_USAGE | {"input_tokens_details": {"cached_tokens": 4}}},
    ),
}
REASONS = {CallKind.MESSAGES: "max_tokens", CallKind.RESPONSES: "max_output_tokens"}


def fed(tail: EventTail, stream: bytes, cuts: list[int]) -> bytes:
    at = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return b"".join(tail.feed(stream[start:end]) for start, end in pairwise(at))


@pytest.mark.parametrize("kind", NAMED)
@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, 5000), max_size=40))
def test_any_split_gives_the_whole_stream_and_what_it_tells(
    kind: CallKind, cuts: list[int]
) -> None:
    tail = EventTail(EVENT_SHAPES[kind], replace_cached=4)
    assert fed(tail, STREAMS[kind], cuts) == STREAMS[kind]
    assert tail.usage is not None
    assert (tail.usage.prompt_tokens, tail.usage.completion_tokens) == (9, 3)
    assert tail.usage.cached_tokens == 4
    assert tail.finish_reason == REASONS[kind]
    assert (tail.done, tail.engine_error) == (True, False)


@pytest.mark.parametrize("kind", NAMED)
def test_an_engine_that_dies_inside_an_event_leaves_no_half_of_it(kind: CallKind) -> None:
    tail = EventTail(EVENT_SHAPES[kind])
    out = fed(tail, STREAMS[kind][:-9], [])
    assert out.endswith(b"\n\n")
    assert not tail.done


@pytest.mark.parametrize("kind", NAMED)
def test_ps_hit_count_takes_the_place_of_ds_and_the_prompt_stays_as_long(kind: CallKind) -> None:
    tail = EventTail(EVENT_SHAPES[kind], replace_cached=7)
    out = fed(tail, STREAMS[kind], [])
    again = EventTail(EVENT_SHAPES[kind])
    fed(again, out, [])
    assert again.usage is not None
    assert (again.usage.prompt_tokens, again.usage.cached_tokens) == (9, 7)
    assert len(out.split(b"\n\n")) == len(STREAMS[kind].split(b"\n\n"))


@pytest.mark.parametrize("kind", NAMED)
def test_an_engines_error_event_ends_the_stream(kind: CallKind) -> None:
    tail = EventTail(EVENT_SHAPES[kind])
    failed = event("error", error={"type": "internal_error", "message": "no"})
    assert tail.feed(failed) == failed
    assert (tail.done, tail.engine_error) == (True, True)


def test_what_comes_before_the_first_token_is_no_output() -> None:
    tail = EventTail(EVENT_SHAPES[CallKind.RESPONSES])
    tail.feed(event("response.created") + event("response.in_progress"))
    assert not tail.has_output
    tail.feed(event("response.output_item.added"))
    assert tail.has_output


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}},
        {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}},
        {"input_tokens": 5, "cache_read_input_tokens": 4},
    ],
    ids=["chat", "responses", "messages"],
)
def test_a_hand_off_tells_ps_hits_in_every_api(usage: dict[str, Any]) -> None:
    where = {"remote_engine_id": "e", "remote_host": "h", "remote_port": 1}
    params = where | {"do_remote_prefill": True}
    reply = {"usage": usage, "kv_transfer_params": params}
    assert handoff_in(json.dumps(reply).encode()).cached_tokens == 4
