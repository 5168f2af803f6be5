"""One real in-process engine with the plug-in: what a model runner makes of hide and unhide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from engine.marks import Marks
from policy.vocabulary import RequestClass
from tests.engine.engine_client import (
    BLOCK,
    OUTPUT_TOKENS,
    Client,
    an_engine,
    scheduler_of,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.vllm_cpu,
    # An engine's start touches deprecated names of torch; none of them is ours.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def llm() -> Iterator[Any]:
    yield from an_engine()


def stats_of(llm: Any) -> Any:
    return scheduler_of(llm).shadow_stats


PROMPTS = [text_of(length, seed) for seed, length in enumerate((70, 333, 600))]


def test_greedy_outputs_are_the_same_with_and_without_shadow_work_beside_them(llm: Any) -> None:
    alone = Client(llm, "alone")
    for index, ids in enumerate(PROMPTS):
        alone.call(str(index), ids)
        alone.run()
    beside = Client(llm, "beside")
    tokens_before = stats_of(llm).tokens
    beside.shadow("before", text_of(700, 7))
    beside.step()
    for index, ids in enumerate(PROMPTS):
        beside.call(str(index), ids)
        beside.step()
        beside.shadow(f"s{index}", text_of(500, 100 + index))
    beside.run()
    assert stats_of(llm).tokens - tokens_before == 700 + 3 * 500
    for index in range(len(PROMPTS)):
        assert beside.ids_of(str(index)) == alone.ids_of(str(index))


def test_a_call_after_its_shadow_computes_the_tail_and_says_the_same(llm: Any) -> None:
    text = text_of(1000, 42)
    cold = Client(llm, "cold")
    cold.call("call", text)
    cold.run()
    warm = Client(llm, "warm")
    warm.shadow("shadow", text[:800], "session")
    warm.run()
    warm.call("call", text, "session")
    warm.run()
    assert cold.outputs["call"].num_cached_tokens == 0
    assert warm.outputs["call"].num_cached_tokens == 800
    assert warm.ids_of("call") == cold.ids_of("call")


def test_a_call_that_cuts_its_shadow_short_uses_what_was_computed(llm: Any) -> None:
    text = text_of(1000, 43)
    cold = Client(llm, "cold2")
    cold.call("call", text)
    cold.run()
    warm = Client(llm, "warm2")
    warm.shadow("shadow", text, "session")
    tokens_before = stats_of(llm).tokens
    warm.step()
    computed_tokens = stats_of(llm).tokens - tokens_before
    warm.call("call", text, "session")
    warm.run()
    assert warm.outputs["shadow"].outputs[0].finish_reason == "abort"
    assert warm.outputs["shadow"].outputs[0].stop_reason == "released_by_routed_call"
    assert 0 < computed_tokens < 1000
    assert warm.outputs["call"].num_cached_tokens == computed_tokens // BLOCK * BLOCK
    assert warm.ids_of("call") == cold.ids_of("call")


def test_a_shadow_that_lost_its_blocks_on_the_way_computes_the_same_kv(llm: Any) -> None:
    text = text_of(900, 44)
    cold = Client(llm, "cold3")
    cold.call("call", text)
    cold.run()
    scheduler = scheduler_of(llm)
    warm = Client(llm, "warm3")
    warm.shadow("shadow", text[:640])
    warm.step()
    assert "shadow" not in warm.outputs
    assert scheduler.reset_prefix_cache()
    warm.run()
    warm.call("call", text)
    warm.run()
    assert warm.outputs["call"].num_cached_tokens == 640
    assert warm.ids_of("call") == cold.ids_of("call")


def test_a_refused_request_ends_with_an_error_and_the_engine_goes_on(llm: Any) -> None:
    client = Client(llm, "bad")
    client.send("bad", PROMPTS[0], Marks(request_class=RequestClass.SHADOW), max_tokens=5)
    client.call("good", PROMPTS[0])
    client.run()
    assert client.outputs["bad"].outputs[0].finish_reason == "error"
    assert len(client.ids_of("good")) == OUTPUT_TOKENS
