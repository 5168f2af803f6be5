"""One real in-process engine with the plug-in: what a model runner makes of hide and unhide."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from engine.marks import Marks
from policy.vocabulary import RequestClass

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.vllm_cpu,
    # An engine's start touches deprecated names of torch; none of them is ours.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

MODEL = Path(__file__).parents[2] / ".models" / "tiny-a"
OUTPUT_TOKENS = 24
BLOCK = 32


@pytest.fixture(scope="module")
def llm() -> Iterator[Any]:
    from vllm import LLM

    from tests.engine.scheduler_world import params

    with pytest.MonkeyPatch.context() as environment:
        for name, value in {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }.items():
            environment.setenv(name, value)
        yield LLM(
            str(MODEL),
            dtype="float32",
            max_model_len=4096,
            max_num_batched_tokens=512,
            max_num_seqs=8,
            block_size=BLOCK,
            enforce_eager=True,
            enable_prefix_caching=True,
            distributed_executor_backend="uni",
            disable_log_stats=False,
            scheduler_cls="colocated.scheduler.ColocatedScheduler",
            additional_config={"shadowprefill": params().to_object()},
        )


class Client:
    """Drives the engine's own step loop; a step is one iteration."""

    def __init__(self, llm: Any, salt: str) -> None:
        self.engine = llm.llm_engine
        self.salt = salt
        self.outputs: dict[str, Any] = {}

    def send(self, name: str, ids: list[int], marks: Marks, max_tokens: int) -> None:
        from vllm import SamplingParams

        sampling = SamplingParams(
            temperature=0, max_tokens=max_tokens, ignore_eos=True, extra_args=dict(marks.to_xargs())
        )
        prompt = {"prompt_token_ids": ids, "cache_salt": self.salt}
        self.engine.add_request(f"{self.salt}-{name}", prompt, sampling)

    def call(self, name: str, ids: list[int], session: str = "") -> None:
        marks = Marks(request_class=RequestClass.ROUTED, session_id=session)
        self.send(name, ids, marks, OUTPUT_TOKENS)

    def shadow(self, name: str, ids: list[int], session: str = "") -> None:
        self.send(name, ids, Marks(request_class=RequestClass.SHADOW, session_id=session), 1)

    def step(self) -> None:
        for output in self.engine.step():
            if output.finished:
                self.outputs[output.request_id.removeprefix(f"{self.salt}-")] = output

    def run(self) -> None:
        for _ in range(500):
            if not self.engine.has_unfinished_requests():
                return
            self.step()
        raise AssertionError("the engine did not finish")

    def ids_of(self, name: str) -> list[int]:
        return list(self.outputs[name].outputs[0].token_ids)


def text_of(tokens: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(10, 400) for _ in range(tokens)]


def stats_of(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core.scheduler.shadow_stats


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
    for _ in range(5):
        warm.step()
    warm.call("call", text, "session")
    warm.run()
    assert warm.outputs["shadow"].outputs[0].finish_reason == "abort"
    assert warm.outputs["shadow"].outputs[0].stop_reason == "released_by_routed_call"
    assert warm.outputs["call"].num_cached_tokens == 5 * 64
    assert warm.ids_of("call") == cold.ids_of("call")


def test_a_shadow_that_lost_its_blocks_on_the_way_computes_the_same_kv(llm: Any) -> None:
    text = text_of(900, 44)
    cold = Client(llm, "cold3")
    cold.call("call", text)
    cold.run()
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    warm = Client(llm, "warm3")
    warm.shadow("shadow", text[:640])
    for _ in range(3):
        warm.step()
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
