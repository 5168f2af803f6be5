"""The tail of a stream: usage is found and taken out, and no split breaks an event."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.sse import StreamTail, with_cached_tokens

ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
TEXT = b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
END = b'data: {"choices":[{"delta":{"content":"."},"finish_reason":"stop"}]}\n\n'
USAGE = (
    b'data: {"id":"x","choices":[],"usage":{"prompt_tokens":9,"total_tokens":12,'
    b'"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
)
DONE = b"data: [DONE]\n\n"
STREAM = ROLE + TEXT * 3 + END + USAGE + DONE
# Text that looks like what the tail looks for: JSON escapes its quotes, so it is not.
TRAP = (
    b'data: {"choices":[{"delta":{"content":"\\"usage\\":{} data: [DONE] data: {\\"error\\"'
    b'"},"finish_reason":null}]}\n\n'
)


def fed(tail: StreamTail, chunks: list[bytes]) -> bytes:
    return b"".join(tail.feed(chunk) for chunk in chunks)


def splits(data: bytes, cuts: list[int]) -> list[bytes]:
    at = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(at) if start < end]


@given(cuts=st.lists(st.integers(min_value=0, max_value=len(STREAM)), max_size=40))
def test_any_split_gives_the_stream_without_its_usage_event(cuts: list[int]) -> None:
    tail = StreamTail(usage_wanted=False)
    assert fed(tail, splits(STREAM, cuts)) == STREAM.replace(USAGE, b"")
    assert tail.usage is not None
    assert (tail.usage.prompt_tokens, tail.usage.completion_tokens) == (9, 3)
    assert tail.usage.cached_tokens == 4
    assert tail.done
    assert tail.finish_reason == "stop"


@given(cuts=st.lists(st.integers(min_value=0, max_value=len(STREAM)), max_size=40))
def test_any_split_gives_the_whole_stream_to_a_client_that_asked(cuts: list[int]) -> None:
    tail = StreamTail(usage_wanted=True, replace_cached=4)
    assert fed(tail, splits(STREAM, cuts)) == STREAM
    assert tail.usage is not None


def test_whole_events_pass_at_once_and_untouched() -> None:
    tail = StreamTail(usage_wanted=False)
    assert tail.feed(ROLE) is ROLE
    assert tail.feed(TEXT + TEXT) == TEXT + TEXT


def test_half_an_event_is_held_back_and_never_relayed_alone() -> None:
    tail = StreamTail(usage_wanted=False)
    assert tail.feed(TEXT + END[:20]) == TEXT
    assert not tail.done
    assert tail.feed(END[20:]) == END


@pytest.mark.parametrize("wanted", [True, False])
def test_text_that_spells_the_markers_is_text(wanted: bool) -> None:
    tail = StreamTail(usage_wanted=wanted)
    assert tail.feed(TRAP) == TRAP
    assert (tail.usage, tail.done, tail.engine_error) == (None, False, False)


def test_the_usage_event_gets_ps_hit_count() -> None:
    tail = StreamTail(usage_wanted=True, replace_cached=7)
    event = json.loads(tail.feed(USAGE)[6:])
    assert event["usage"]["prompt_tokens_details"]["cached_tokens"] == 7
    assert event["id"] == "x"


def test_usage_on_every_chunk_is_the_clients_own_wish_and_stays() -> None:
    chunk = b'data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":1}}\n\n'
    tail = StreamTail(usage_wanted=True)
    assert tail.feed(chunk) == chunk
    assert tail.usage is not None


def test_usage_null_is_no_usage() -> None:
    chunk = b'data: {"choices":[{"delta":{}}],"usage":null}\n\n'
    tail = StreamTail(usage_wanted=False)
    assert tail.feed(chunk) == chunk
    assert tail.usage is None


def test_an_engines_error_event_is_seen_and_passed_on() -> None:
    event = b'data: {"error":{"message":"boom"}}\n\n'
    tail = StreamTail(usage_wanted=False)
    assert tail.feed(event) == event
    assert tail.engine_error


def test_only_the_hit_count_of_a_body_changes() -> None:
    body = b'{"choices":[{"text":"\\u00e9 x"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}'
    changed = with_cached_tokens(body, 2)
    assert b'{"choices":[{"text":"\\u00e9 x"}]' in changed
    assert json.loads(changed)["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
