"""Real engines with what is allowed beside shadow work: same tokens out, and the prefix is warm."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.engine_client import MODEL, Client, an_engine, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.vllm_cpu,
    # An engine's start touches deprecated names of torch; none of them is ours.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

SHADOW_TOKENS = 800
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}


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


def a_model_with_sliding_windows(folder: Path) -> Path:
    import torch
    import transformers

    config = transformers.Gemma3TextConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        query_pre_attn_scalar=32,
        sliding_window=64,
        layer_types=["sliding_attention", "full_attention"] * 2,
        max_position_embeddings=8192,
        initializer_range=0.3,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        dtype="float32",
    )
    torch.manual_seed(3)
    transformers.Gemma3ForCausalLM(config).save_pretrained(folder)
    for file in MODEL.glob("tokenizer*"):
        shutil.copy(file, folder)
    return folder


@pytest.fixture(scope="module")
def with_extras() -> Iterator[Any]:
    """Three features in one engine: a start is dear, and they must bear each other, too."""
    yield from an_engine(
        enable_lora=True,
        max_lora_rank=8,
        speculative_config=NGRAM,
        scheduling_policy="priority",
    )


@pytest.fixture(scope="module")
def with_windows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    model = a_model_with_sliding_windows(tmp_path_factory.mktemp("models") / "windows")
    yield from an_engine(model, disable_hybrid_kv_cache_manager=True)


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


def test_ngram_speculation_and_priorities_bear_shadow_work(with_extras: Any) -> None:
    check_warm_call(with_extras, "plain")


def test_a_shadow_that_names_an_adapter_warms_its_calls(with_extras: Any, tmp_path: Path) -> None:
    from vllm.lora.request import LoRARequest

    adapter = LoRARequest("adapter", 1, str(an_adapter(tmp_path / "adapter")))
    says = check_warm_call(with_extras, "adapted", adapter)
    assert says != check_warm_call(with_extras, "not-adapted")


def test_sliding_windows_in_one_kv_group_bear_shadow_work(with_windows: Any) -> None:
    scheduler = with_windows.llm_engine.engine_core.engine_core.scheduler
    assert len(scheduler.kv_cache_config.kv_cache_groups) == 1
    check_warm_call(with_windows, "windows")
