"""One real engine in this process, and a client that drives it step by step: for tests."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from engine.marks import Marks
from policy.vocabulary import RequestClass
from tests.engine.params_of import params

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engine.params import EngineParams

MODEL = Path(__file__).parents[2] / ".models" / "tiny-a"
OUTPUT_TOKENS = 24
BLOCK = 32
SHADOW_TOKENS = 800
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


def an_engine(
    model: Path = MODEL, engine_params: EngineParams | None = None, **engine_args: Any
) -> Iterator[Any]:
    from vllm import LLM

    built = (engine_params or params()).to_object()
    arguments: dict[str, Any] = {
        "dtype": "float32",
        "max_model_len": 4096,
        "max_num_batched_tokens": 512,
        "max_num_seqs": 8,
        "block_size": BLOCK,
        "enforce_eager": True,
        "enable_prefix_caching": True,
        "distributed_executor_backend": "uni",
        "disable_log_stats": False,
        "scheduler_cls": "colocated.scheduler.ColocatedScheduler",
        "additional_config": {"shadowprefill": built},
    }
    with pytest.MonkeyPatch.context() as environment:
        for name, value in ENVIRONMENT.items():
            environment.setenv(name, value)
        yield LLM(str(model), **(arguments | engine_args))


class Client:
    """Drives the engine's own step loop; a step is one iteration."""

    def __init__(self, llm: Any, salt: str, lora: Any = None) -> None:
        self.engine = llm.llm_engine
        self.salt = salt
        self.lora = lora
        self.outputs: dict[str, Any] = {}

    def send(self, name: str, ids: list[int], marks: Marks, max_tokens: int) -> None:
        from vllm import SamplingParams

        sampling = SamplingParams(
            temperature=0, max_tokens=max_tokens, ignore_eos=True, extra_args=dict(marks.to_xargs())
        )
        prompt = {"prompt_token_ids": ids, "cache_salt": self.salt}
        self.engine.add_request(f"{self.salt}-{name}", prompt, sampling, lora_request=self.lora)

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


def scheduler_of(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core.scheduler


def check_warm_call(llm: Any, name: str, lora: Any = None) -> list[int]:
    """A call beside a shadow and after its own shadow says what it says alone, from a warm
    prefix."""
    text = text_of(SHADOW_TOKENS + 200, 42)
    cold = Client(llm, f"{name}-cold", lora)
    cold.call("call", text)
    cold.run()
    warm = Client(llm, f"{name}-warm", lora)
    warm.call("decoding", text_of(100, 1))
    warm.step()
    warm.shadow("shadow", text[:SHADOW_TOKENS], "session")
    warm.run()
    warm.call("call", text, "session")
    warm.shadow("beside", text_of(500, 2))
    warm.run()
    assert cold.outputs["call"].num_cached_tokens == 0
    assert warm.outputs["call"].num_cached_tokens == SHADOW_TOKENS
    assert warm.ids_of("call") == cold.ids_of("call")
    return warm.ids_of("call")
