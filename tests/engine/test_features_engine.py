"""Real engines with what is allowed beside shadow work: same tokens out, and the prefix is warm."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.engine_client import MODEL, an_engine, check_warm_call

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.vllm_cpu,
    # An engine's start touches deprecated names of torch; none of them is ours.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

ROOT = Path(__file__).parents[2]
EXTRAS = "tests/engine/extras_engine.py"


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
def with_windows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    model = a_model_with_sliding_windows(tmp_path_factory.mktemp("models") / "windows")
    yield from an_engine(model, disable_hybrid_kv_cache_manager=True)


def test_sliding_windows_in_one_kv_group_bear_shadow_work(with_windows: Any) -> None:
    scheduler = with_windows.llm_engine.engine_core.engine_core.scheduler
    assert len(scheduler.kv_cache_config.kv_cache_groups) == 1
    check_warm_call(with_windows, "windows")


def test_ngram_speculation_adapters_and_priorities_bear_shadow_work() -> None:
    """In a process of its own: after n-gram speculation (numba) vLLM starts no second engine."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=short", "--show-capture=no", EXTRAS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "3 passed" in run.stdout, run.stdout[-4000:]
