"""What a model's files say of its size: config.json and the sizes of its safetensors.

A hub name is looked up in the Hugging Face cache of this machine, then among the models that are
written down here (`architectures.json`, in the words of config.json). Nothing is downloaded.
Hosts: configs.memory.plan."""

from __future__ import annotations

import importlib.resources
import json
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from configs.memory.sizes import ModelShape

if TYPE_CHECKING:
    from collections.abc import Mapping

VALUE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_OTHER_CACHES = (
    "layers_block_type",
    "attn_layer_period",
    "full_attention_interval",
    "hybrid_override_pattern",
    "ssm_cfg",
    "index_topk",
)
"""Keys of models whose layers keep something else than K and V, or more."""
_KV_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}


class FactsUnknown(ValueError):
    """Nothing here says how large this model is: it is not planned, and not refused."""


class ModelFiles(NamedTuple):
    config: Mapping[str, Any]
    """config.json."""
    stored_bytes: int
    """Of all weights."""
    source: str
    is_local: bool


def model_files(path: str) -> ModelFiles:
    """Of a folder or a hub name; raises FactsUnknown."""
    folder = Path(path) if Path(path).is_dir() else _cached(path)
    if folder is not None and (folder / "config.json").is_file():
        return _read(folder)
    known = _written_down()
    if path in known:
        entry = known[path]
        written = entry["config"], entry["weight_bytes"], "architectures.json"
        return ModelFiles(*written, is_local=False)
    raise FactsUnknown(f"no folder, not in this machine's hub cache, not one of {sorted(known)}")


def shape_of(files: ModelFiles, dtype: str, quantization: str | None) -> ModelShape:
    """As served with this dtype; raises FactsUnknown."""
    config = files.config.get("text_config", files.config)
    _check_layers(config)
    try:
        return _shape(files, config, dtype, quantization)
    except KeyError as error:
        raise FactsUnknown(f"{files.source}: {error.args[0]} is missing") from None


def served_dtype(config: Mapping[str, Any], dtype: str) -> str:
    """`auto` is the checkpoint's own, except that vLLM serves float32 as a 16-bit type."""
    stored = str(config.get("dtype", config.get("torch_dtype", "float32")))
    if dtype != "auto":
        return dtype
    return "bfloat16" if stored == "float32" else stored


def _shape(
    files: ModelFiles, config: Mapping[str, Any], dtype: str, quantization: str | None
) -> ModelShape:
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    layers = config["num_hidden_layers"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or hidden // heads
    value_bytes = VALUE_BYTES[served_dtype(files.config, dtype)]
    latent = config.get("kv_lora_rank")
    kv_head = 0 if latent is not None else 2 * hidden * head_dim * layers
    return ModelShape(
        heads=heads,
        kv_heads=kv_heads,
        kv_layers=layers,
        head_dim=head_dim,
        latent_width=None if latent is None else latent + config["qk_rope_head_dim"],
        weight_bytes=_weight_bytes(files, dtype, quantization),
        whole_weight_bytes=_whole_values(config, layers, hidden) * value_bytes,
        kv_head_weight_bytes=0 if "quantization_config" in config else kv_head * value_bytes,
    )


def _whole_values(config: Mapping[str, Any], layers: int, hidden: int) -> int:
    """That each GPU of a group holds: norms, gates of experts, down-projections of MLA."""
    norms = (2 * layers + 1) * hidden
    experts: int = config.get("n_routed_experts") or config.get("num_local_experts") or 0
    dense_layers: int = config.get("first_k_dense_replace", 0)
    gates = (layers - dense_layers) * hidden * experts
    latent: int | None = config.get("kv_lora_rank")
    if latent is None:
        return norms + gates
    down: int = latent + config["qk_rope_head_dim"] + (config.get("q_lora_rank") or 0)
    return norms + gates + layers * hidden * down


def _weight_bytes(files: ModelFiles, dtype: str, quantization: str | None) -> int:
    if "quantization_config" in files.config:
        return files.stored_bytes
    if quantization is not None:
        raise FactsUnknown(f"quantization {quantization} happens while it is loaded")
    stored = str(files.config.get("dtype", files.config.get("torch_dtype", "float32")))
    served = served_dtype(files.config, dtype)
    return files.stored_bytes // VALUE_BYTES[stored] * VALUE_BYTES[served]


def _check_layers(config: Mapping[str, Any]) -> None:
    kinds = set(config.get("layer_types", ())) - _KV_LAYERS
    other = sorted(kinds | {key for key in _OTHER_CACHES if key in config})
    if other:
        raise FactsUnknown(f"its layers keep more or other things than K and V: {other}")


def _read(folder: Path) -> ModelFiles:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        stored = int(json.loads(index.read_text(encoding="utf-8"))["metadata"]["total_size"])
    else:
        stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if not stored:
        raise FactsUnknown(f"{folder} holds no safetensors, so its weights cannot be counted")
    return ModelFiles(config, stored, str(folder / "config.json"), is_local=True)


def _cached(name: str) -> Path | None:
    """The snapshot that an engine of this machine would load."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    repository = hub / f"models--{name.replace('/', '--')}"
    main = repository / "refs" / "main"
    if not main.is_file():
        return None
    return repository / "snapshots" / main.read_text(encoding="utf-8").strip()


@cache
def _written_down() -> dict[str, dict[str, Any]]:
    text = (importlib.resources.files("configs.memory") / "architectures.json").read_text()
    models: dict[str, dict[str, Any]] = json.loads(text)["models"]
    return models
