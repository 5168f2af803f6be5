"""Bytes of weights and KV on one GPU of a tensor-parallel group.

vLLM splits every large matrix over the group. What it keeps whole on each GPU are norms, expert
gates and MLA's down-projections; and of the KV heads a GPU holds at least one, so that a group
larger than their number keeps copies. Pure. Host: configs.memory.plan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Of a model as it is served: values are of the served type, not of the checkpoint's."""

    heads: int
    kv_heads: int
    kv_layers: int
    """Those that keep KV of every token. A layer with a window is one of them, because shadow work
    wants `disable_hybrid_kv_cache_manager` there."""
    head_dim: int
    latent_width: int | None
    """MLA: values that a token leaves in each layer, whole on every GPU; None: heads of K and V."""
    weight_bytes: int
    whole_weight_bytes: int
    """Of them, what every GPU of a group holds whole."""
    kv_head_weight_bytes: int
    """Of them, the projections of one KV head in all layers."""


def group_problem(shape: ModelShape, gpus: int) -> str | None:
    """Why the model cannot be split over so many GPUs; None if it can."""
    if shape.heads % gpus:
        return f"must divide the model's {shape.heads} attention heads, got {gpus}"
    if shape.latent_width is None and shape.kv_heads % gpus and gpus % shape.kv_heads:
        return f"must divide the model's {shape.kv_heads} KV heads or be a multiple, got {gpus}"
    return None


def kv_bytes_per_token(shape: ModelShape, gpus: int, value_bytes: int) -> int:
    """On one GPU."""
    if shape.latent_width is not None:
        return shape.latent_width * value_bytes * shape.kv_layers
    return 2 * _kv_heads_on_one(shape, gpus) * shape.head_dim * value_bytes * shape.kv_layers


def weight_bytes(shape: ModelShape, gpus: int) -> int:
    """On one GPU."""
    heads = shape.kv_head_weight_bytes * shape.kv_heads
    split = shape.weight_bytes - shape.whole_weight_bytes - heads
    own_heads = shape.kv_head_weight_bytes * _kv_heads_on_one(shape, gpus)
    return shape.whole_weight_bytes + own_heads + -(-split // gpus)


def pool_blocks(pool_bytes: int, block_bytes: int) -> int:
    """As vLLM counts them ("GPU KV cache size"); requests get all but one, which is padding."""
    return max(0, pool_bytes // block_bytes)


def _kv_heads_on_one(shape: ModelShape, gpus: int) -> int:
    return max(1, shape.kv_heads // gpus)
