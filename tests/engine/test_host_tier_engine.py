"""One real in-process engine with a tiny KV pool and a host tier: an evicted session comes back
from host memory, and says the same as without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from engine.kv_connectors import HOST_TIER_CONNECTOR, HOST_TIER_MODULE
from engine.params import StepTimeStart
from policy.host_tier import HostTier
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
STEP_TIME = StepTimeStart(
    fixed_s=0.001, s_per_request=0.0, s_per_token=0.0001, s_per_token_context=0.0
)


@pytest.fixture(scope="module")
def llm() -> Iterator[Any]:
    from vllm.config import KVTransferConfig

    tier = {"size_bytes": 2**26, "bandwidth_bytes_per_s": 4e9, "idle_age_s": 0.0}
    yield from an_engine(
        engine_params=params(kv_cap_share=0.95, idle_age_s=0.0, step_time=STEP_TIME),
        num_gpu_blocks_override=POOL_BLOCKS,
        max_model_len=1280,
        kv_transfer_config=KVTransferConfig(
            kv_connector=HOST_TIER_CONNECTOR,
            kv_connector_module_path=HOST_TIER_MODULE,
            kv_role="kv_both",
            kv_connector_extra_config={
                "spec_name": "HostTierSpec",
                "spec_module_path": HOST_TIER_MODULE,
                "host_tier": tier,
            },
        ),
    )


def tier_of(llm: Any) -> Any:
    return scheduler_of(llm).connector.manager.tier


def check(llm: Any) -> None:
    scheduler_of(llm).kv_cache_manager.block_pool.free_block_queue.check()
    tier_of(llm).check()


def alone(llm: Any, name: str, text: list[int]) -> list[int]:
    """What the model says where nothing of this text is cached anywhere."""
    client = Client(llm, f"alone-{name}")
    client.call("call", text)
    client.run()
    assert client.outputs["call"].num_cached_tokens == 0
    return client.ids_of("call")


def fill_the_pool(client: Client) -> None:
    for seed in (71, 72):
        client.call(f"other-{seed}", text_of(1200, seed))
        client.run()


def test_an_evicted_session_is_restored_with_what_was_generated(llm: Any) -> None:
    client = Client(llm, "session")
    first = text_of(600, 1)
    client.call("first", first)
    client.run()
    fill_the_pool(client)
    again = first + client.ids_of("first") + text_of(90, 2)
    client.call("again", again)
    client.run()
    check(llm)
    # Of the answer's last token there is no KV.
    assert client.outputs["again"].num_cached_tokens == (600 + 24 - 1) // BLOCK * BLOCK
    assert scheduler_of(llm).connector.manager.counts.loaded == (600 + 24 - 1) // BLOCK
    assert client.ids_of("again") == alone(llm, "again", again)


def test_a_shadow_that_was_evicted_still_warms_its_call(llm: Any) -> None:
    client = Client(llm, "shadow")
    text = text_of(640, 3)
    client.shadow("shadow", text, "s")
    client.run()
    fill_the_pool(client)
    call = text + text_of(50, 4)
    client.call("call", call, "s")
    client.run()
    check(llm)
    assert client.outputs["call"].num_cached_tokens == 640
    assert client.ids_of("call") == alone(llm, "shadow", call)


def test_a_shadow_whose_prefix_is_in_the_tier_only_ends_well(llm: Any) -> None:
    client = Client(llm, "half")
    text = text_of(700, 5)
    client.call("first", text[:600])
    client.run()
    fill_the_pool(client)
    client.shadow("shadow", text, "s")
    client.call("beside", text_of(60, 6))
    client.run()
    client.call("call", text + text_of(30, 7), "s")
    client.run()
    check(llm)
    assert client.outputs["call"].num_cached_tokens >= 700 // BLOCK * BLOCK
    assert client.ids_of("call") == alone(llm, "half", text + text_of(30, 7))


def test_a_full_tier_loses_shadow_entries_first_and_nobody_notices(llm: Any) -> None:
    connector = scheduler_of(llm).connector
    connector.reset_cache()
    connector.manager.tier = HostTier(40, 0.0)
    client = Client(llm, "full")
    texts = [text_of(600, 10 + index) for index in range(5)]
    client.call("0", texts[0])
    client.run()
    client.shadow("shadow", text_of(640, 20))
    client.run()
    for index in range(1, 5):
        client.call(str(index), texts[index])
        client.run()
        check(llm)
    evictions = tier_of(llm).evictions
    assert evictions[KvClass.SHADOW] > 0
    assert tier_of(llm).entries(KvClass.SHADOW) == 0
    assert evictions[KvClass.NORMAL] > 0
    for index in range(5):
        client.call(f"again-{index}", texts[index])
        client.run()
        assert client.ids_of(f"again-{index}") == client.ids_of(str(index))
    check(llm)
