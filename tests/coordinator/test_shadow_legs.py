"""What an engine's answer to a segment means."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from coordinator.engine_post import ShadowFailed, ShadowFailure
from coordinator.instances import Instance
from coordinator.shadow_legs import Computed, Segment, compute
from policy.vocabulary import Role

P = Instance(name="p", url="http://p", role=Role.PREFILL, model="large")
SEGMENT = Segment(model="large", token_ids=[1, 2], cache_salt="salt", xargs={"a": "b"})


@dataclass
class Engine:
    """Stands in for EnginePost."""

    answer: bytes

    async def __call__(
        self, instance: Instance, path: str, body: bytes, traceparent: str = ""
    ) -> bytes:
        return self.answer


def an_answer(**choice: object) -> bytes:
    usage = {"prompt_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
    return json.dumps({"choices": [choice], "usage": usage}).encode()


async def computed(answer: bytes) -> Computed:
    post: Any = Engine(answer)
    return await compute(post, P, SEGMENT, hand_off=False)


@pytest.mark.parametrize(
    "choice",
    [
        {"finish_reason": "length", "stop_reason": None},
        {"finish_reason": "stop", "stop_reason": 2},
        {"finish_reason": "stop"},
    ],
    ids=["one_token", "stop_token", "end_of_text"],
)
async def test_a_finished_segment_tells_what_was_cached(choice: dict[str, Any]) -> None:
    assert await computed(an_answer(**choice)) == Computed(1, None)


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens_details": None}])
async def test_no_details_mean_nothing_was_cached(usage: object) -> None:
    body = {"choices": [{"finish_reason": "length"}], "usage": usage}
    assert await computed(json.dumps(body).encode()) == Computed(0, None)


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (
            an_answer(finish_reason="abort", stop_reason="released_by_routed_call"),
            ShadowFailure.RELEASED,
        ),
        (an_answer(finish_reason="abort", stop_reason="superseded"), ShadowFailure.RELEASED),
        (an_answer(finish_reason="abort", stop_reason="truncated_by_cap"), ShadowFailure.TRUNCATED),
        (an_answer(finish_reason="abort", stop_reason="stalled"), ShadowFailure.ENDED_EARLY),
        (an_answer(finish_reason="abort", stop_reason=None), ShadowFailure.ENDED_EARLY),
        (an_answer(finish_reason="stop", stop_reason="shadow_off"), ShadowFailure.ENDED_EARLY),
        (b'{"choices": []}', ShadowFailure.UNREADABLE),
        (b"oops", ShadowFailure.UNREADABLE),
    ],
)
async def test_a_segment_that_ended_early_is_not_taken_for_a_finished_one(
    answer: bytes, failure: ShadowFailure
) -> None:
    with pytest.raises(ShadowFailed) as caught:
        await computed(answer)
    assert caught.value.failure is failure
