"""Run by test_features_engine.py: three features in one engine, because a start is dear and they
must bear each other, too."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.engine_client import SHADOW_TOKENS, Client, an_engine, check_warm_call, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.vllm_cpu,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*Encountered the use of a type.*reflected list"),
    pytest.mark.filterwarnings("ignore::Warning:numba"),
]

# Of one token: whatever is said last stands somewhere in the prompt, and drafts are made.
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 2,
}


def an_adapter(folder: Path) -> Path:
    """A LoRA adapter of tiny-a, wide enough to change what it says."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(5)
    names = [
        f"base_model.model.model.layers.{layer}.self_attn.{part}"
        for layer in range(2)
        for part in ("q_proj", "v_proj")
    ]
    weights = {f"{name}.lora_A.weight": torch.randn(8, 64) for name in names}
    weights |= {f"{name}.lora_B.weight": torch.randn(64, 8) for name in names}
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def with_extras() -> Iterator[Any]:
    yield from an_engine(
        enable_lora=True,
        max_lora_rank=8,
        speculative_config=NGRAM,
        scheduling_policy="priority",
    )


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest("adapter", 1, str(an_adapter(tmp_path_factory.mktemp("lora") / "adapter")))


def test_ngram_speculation_and_priorities_bear_shadow_work(with_extras: Any) -> None:
    scheduler = with_extras.llm_engine.engine_core.engine_core.scheduler
    drafted: set[str] = set()
    build = scheduler.schedule

    def schedule(*arguments: Any) -> Any:
        output = build(*arguments)
        drafted.update(output.scheduled_spec_decode_tokens)
        return output

    scheduler.schedule = schedule
    check_warm_call(with_extras, "plain")
    del scheduler.schedule
    assert any("call" in request_id for request_id in drafted)
    assert not any("shadow" in request_id for request_id in drafted)


def test_a_shadow_that_names_an_adapter_warms_its_calls(with_extras: Any, adapter: Any) -> None:
    says = check_warm_call(with_extras, "adapted", adapter)
    assert says != check_warm_call(with_extras, "not-adapted")


def test_a_shadow_of_the_base_model_warms_no_adapter(with_extras: Any, adapter: Any) -> None:
    base = Client(with_extras, "one-salt")
    base.shadow("shadow", text_of(SHADOW_TOKENS, 9), "session")
    base.run()
    adapted = Client(with_extras, "one-salt", adapter)
    adapted.call("call", text_of(SHADOW_TOKENS + 100, 9), "session")
    adapted.run()
    assert adapted.outputs["call"].num_cached_tokens == 0
