"""One real in-process engine with a tiny KV pool: normal traffic evicts what shadows cached and
takes the blocks of those that run, and says the same as without them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from policy.vocabulary import KvClass
from tests.engine.engine_client import BLOCK, Client, an_engine, scheduler_of, text_of
from tests.engine.params_of import params

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.vllm_cpu,
    # An engine's start touches deprecated names of torch; none of them is ours.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

POOL_BLOCKS = 48
PROMPTS = [text_of(length, seed) for seed, length in enumerate((70, 333, 600))]


@pytest.fixture(scope="module")
def llm() -> Iterator[Any]:
    pool = params(kv_cap_share=0.95, idle_age_s=0.0)
    yield from an_engine(
        engine_params=pool, num_gpu_blocks_override=POOL_BLOCKS, max_model_len=1280
    )


def check(llm: Any) -> None:
    scheduler_of(llm).kv_cache_manager.block_pool.free_block_queue.check()


def test_calls_that_need_the_blocks_of_shadows_say_the_same_as_alone(llm: Any) -> None:
    alone = Client(llm, "alone")
    for index, ids in enumerate(PROMPTS):
        alone.call(str(index), ids)
        alone.run()
    scheduler = scheduler_of(llm)
    assert scheduler.kv_cache_manager.block_pool.num_gpu_blocks == POOL_BLOCKS
    beside = Client(llm, "beside")
    beside.shadow("cached", text_of(700, 7))
    beside.run()
    beside.shadow("running", text_of(1000, 8))
    while scheduler.shadow_stats.tokens < 700 + 500:
        beside.step()
    assert "running" not in beside.outputs
    assert scheduler.shadow_stats.drops == 0
    for index, ids in enumerate(PROMPTS):
        beside.call(str(index), ids)
        beside.step()
        check(llm)
    beside.run()
    check(llm)
    counts = scheduler.shadow_kv.counts
    assert counts.evictions[KvClass.SHADOW] > 0
    assert scheduler.shadow_stats.drops > 0
    assert beside.outputs["running"].finished
    for index in range(len(PROMPTS)):
        assert beside.ids_of(str(index)) == alone.ids_of(str(index))


def test_a_call_uses_what_is_left_of_its_evicted_shadow_and_says_the_same(llm: Any) -> None:
    text = text_of(1000, 42)
    cold = Client(llm, "cold")
    cold.call("call", text)
    cold.run()
    warm = Client(llm, "warm")
    warm.shadow("shadow", text)
    warm.run()
    warm.call("other", text_of(900, 43))
    warm.run()
    promotions = scheduler_of(llm).shadow_kv.counts.promotions
    warm.call("call", text)
    warm.run()
    check(llm)
    cached_tokens = warm.outputs["call"].num_cached_tokens
    assert 0 < cached_tokens < 31 * BLOCK
    assert scheduler_of(llm).shadow_kv.counts.promotions - promotions == cached_tokens // BLOCK
    assert warm.ids_of("call") == cold.ids_of("call")
