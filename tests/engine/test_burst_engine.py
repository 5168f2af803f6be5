"""One real in-process engine: a burst of calls into a pool full of shadow KV is served, iteration
by iteration, as one into an empty pool, and says the same."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.engine_client import Client, an_engine, scheduler_of, text_of
from tests.engine.params_of import params

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.vllm_cpu,
    # An engine's start touches deprecated names of torch; none of them is ours.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

POOL_BLOCKS = 48
CALLS = 12


@pytest.fixture(scope="module")
def llm() -> Iterator[Any]:
    pool = params(kv_cap_share=1.0, idle_age_s=0.0)
    yield from an_engine(
        engine_params=pool, num_gpu_blocks_override=POOL_BLOCKS, max_model_len=1280
    )


def burst(llm: Any, salt: str) -> tuple[list[dict[str, int]], list[list[int]]]:
    """What each iteration carried of the calls, and what those said."""
    chance = random.Random(3)
    client, scheduler = Client(llm, salt), scheduler_of(llm)
    iterations: list[dict[str, int]] = []
    schedule = scheduler.schedule

    def watched(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        carried = {
            name.split("-")[1]: tokens
            for name, tokens in output.num_scheduled_tokens.items()
            if name.startswith(f"{salt}-")
        }
        iterations.append(carried)
        return output

    for index in range(CALLS):
        client.call(f"c{index}", text_of(chance.randrange(20, 500), seed=50 + index))
    scheduler.schedule = watched
    try:
        while len(client.outputs) < CALLS:
            client.step()
    finally:
        scheduler.schedule = schedule
    return iterations, [client.ids_of(f"c{index}") for index in range(CALLS)]


def test_a_burst_is_served_as_if_the_pool_held_no_shadow_kv(llm: Any) -> None:
    scheduler = scheduler_of(llm)
    empty = burst(llm, "empty")
    assert scheduler.reset_prefix_cache()
    filler = Client(llm, "filler")
    filler.shadow("cached", text_of(800, 7))
    filler.run()
    filler.shadow("running", text_of(1100, 8))
    while scheduler.shadow_kv.counts.shadow_blocks < POOL_BLOCKS - 2:
        filler.step()
    assert "running" not in filler.outputs
    full = burst(llm, "full")
    assert full == empty
