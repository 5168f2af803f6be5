"""What a model's files say of its size, and what they do not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from bench.sim.hardware import architectures
from configs.memory.facts import FactsUnknown, model_files, shape_of

if TYPE_CHECKING:
    from pathlib import Path

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "dtype": "bfloat16",
}
MLA: dict[str, Any] = {
    "num_hidden_layers": 27,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": None,
    "n_routed_experts": 64,
    "first_k_dense_replace": 1,
    "torch_dtype": "bfloat16",
}
"""DeepSeek-V2-Lite."""


def a_model(folder: Path, config: dict[str, Any], stored_bytes: int = 1000) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(bytes(stored_bytes))
    return str(folder)


@pytest.mark.parametrize(
    ("stored", "served", "weights"),
    [
        ("bfloat16", "auto", 1000),
        ("bfloat16", "float32", 2000),
        ("float32", "bfloat16", 500),
        ("float32", "auto", 500),  # vLLM serves float32 as a 16-bit type unless told
    ],
)
def test_weights_are_those_of_the_served_type(
    tmp_path: Path, stored: str, served: str, weights: int
) -> None:
    files = model_files(a_model(tmp_path, {**LLAMA, "dtype": stored}))
    assert shape_of(files, served, None).weight_bytes == weights


def test_heads_follow_from_hidden_size_where_the_file_does_not_say(tmp_path: Path) -> None:
    shape = shape_of(model_files(a_model(tmp_path, LLAMA)), "auto", None)
    assert (shape.head_dim, shape.kv_heads, shape.kv_layers) == (16, 2, 2)
    assert shape.whole_weight_bytes == 5 * 64 * 2
    assert shape.kv_head_weight_bytes == 2 * 64 * 16 * 2 * 2


def test_mla_keeps_a_latent_and_its_down_projections_whole(tmp_path: Path) -> None:
    shape = shape_of(model_files(a_model(tmp_path, MLA)), "auto", None)
    assert shape.latent_width == 576
    norms, gates, down = 55 * 2048, 26 * 2048 * 64, 27 * 2048 * 576
    assert shape.whole_weight_bytes == (norms + gates + down) * 2


def test_the_index_counts_the_weights_of_many_files(tmp_path: Path) -> None:
    path = a_model(tmp_path, LLAMA)
    index = {"metadata": {"total_size": 123_456}, "weight_map": {}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert model_files(path).stored_bytes == 123_456


def test_a_hub_name_is_found_in_the_cache_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--org--model"
    a_model(repository / "snapshots" / "abc", LLAMA, 77)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    assert model_files("org/model").stored_bytes == 77


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ({"ssm_cfg": {}}, "ssm_cfg"),
        ({"index_topk": 2048}, "index_topk"),
        ({"num_attention_heads": None}, None),
    ],
)
def test_what_is_not_known_is_said_and_not_guessed(
    tmp_path: Path, change: dict[str, Any], why: str | None
) -> None:
    config = {**LLAMA, **change}
    if why is None:
        del config["num_attention_heads"]
    files = model_files(a_model(tmp_path, config))
    with pytest.raises(FactsUnknown, match=why or "num_attention_heads is missing"):
        shape_of(files, "auto", None)


def test_weights_after_quantization_at_load_are_not_guessed(tmp_path: Path) -> None:
    files = model_files(a_model(tmp_path, LLAMA))
    with pytest.raises(FactsUnknown, match="quantization fp8 happens while it is loaded"):
        shape_of(files, "auto", "fp8")
    quantised = {**LLAMA, "quantization_config": {"quant_method": "fp8"}}
    files = model_files(a_model(tmp_path / "q", quantised))
    assert shape_of(files, "auto", None).weight_bytes == 1000


def test_a_folder_without_weights_and_an_unknown_name_are_not_planned(tmp_path: Path) -> None:
    path = a_model(tmp_path, LLAMA, 0)
    with pytest.raises(FactsUnknown, match="holds no safetensors"):
        model_files(path)
    with pytest.raises(FactsUnknown, match=r"not one of \['Qwen/Qwen2\.5-32B-Instruct'"):
        model_files("org/unheard-of")


@pytest.mark.parametrize(
    ("name", "simulated"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen2.5-7B"),
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("meta-llama/Llama-3.1-70B-Instruct", "Llama-3.1-70B"),
        ("meta-llama/Llama-3.3-70B-Instruct", "Llama-3.3-70B"),
    ],
)
def test_what_is_written_down_here_and_in_the_simulator_is_one(name: str, simulated: str) -> None:
    ours, theirs = model_files(name), architectures()[simulated]
    shape = shape_of(ours, "auto", None)
    assert (shape.heads, shape.kv_heads) == (theirs.heads, theirs.kv_heads)
    assert (shape.kv_layers, shape.head_dim) == (theirs.layers, theirs.head_dim)
    assert shape.weight_bytes == pytest.approx(theirs.weight_bytes, rel=1e-5)
