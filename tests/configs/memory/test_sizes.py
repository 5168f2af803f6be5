"""Bytes on one GPU, against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from configs.memory.sizes import (
    ModelShape,
    group_problem,
    kv_bytes_per_token,
    pool_blocks,
    weight_bytes,
)


def a_shape(**changes: Any) -> ModelShape:
    """Llama-3.1-8B in bfloat16."""
    values: dict[str, Any] = {
        "heads": 32,
        "kv_heads": 8,
        "kv_layers": 32,
        "head_dim": 128,
        "latent_width": None,
        "weight_bytes": 16_060_522_496,
        "whole_weight_bytes": 532_480,  # 65 norms of 4,096 values
        "kv_head_weight_bytes": 67_108_864,  # K and V, 4,096 x 128 values, 32 layers
    }
    return ModelShape(**{**values, **changes})


LLAMA_70B = a_shape(heads=64, kv_layers=80)
DEEPSEEK_V3 = a_shape(heads=128, kv_heads=128, kv_layers=61, latent_width=512 + 64)
GRANITE = a_shape(heads=48, kv_heads=1, kv_layers=88)


@pytest.mark.parametrize(
    ("shape", "gpus", "value_bytes", "expected"),
    [
        (a_shape(), 1, 2, 131_072),  # 2 x 8 x 128 x 2 x 32
        (a_shape(), 2, 2, 65_536),
        (a_shape(), 8, 2, 16_384),
        (a_shape(), 16, 2, 16_384),  # a KV head is not cut: two GPUs hold the same one
        (a_shape(), 1, 1, 65_536),  # FP8
        (LLAMA_70B, 1, 2, 327_680),
        (LLAMA_70B, 4, 2, 81_920),
        (GRANITE, 1, 2, 45_056),
        (GRANITE, 2, 2, 45_056),
        (DEEPSEEK_V3, 1, 2, 70_272),  # 576 x 2 x 61, the 70 KB of the paper on DeepSeek-V3
        (DEEPSEEK_V3, 8, 2, 70_272),  # MLA's latent is whole on every GPU
    ],
)
def test_kv_of_a_token_on_one_gpu(
    shape: ModelShape, gpus: int, value_bytes: int, expected: int
) -> None:
    assert kv_bytes_per_token(shape, gpus, value_bytes) == expected


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (1, 16_060_522_496),
        (2, 8_030_527_488),  # half of all but the norms, and the norms
        (8, 2_008_031_232),
        # 16: the norms, one KV head (of 8, held twice) and a sixteenth of the rest
        (16, 532_480 + 67_108_864 + (16_060_522_496 - 532_480 - 8 * 67_108_864) // 16),
    ],
)
def test_a_group_splits_all_weights_but_norms_and_kv_heads_that_it_cannot_cut(
    gpus: int, expected: int
) -> None:
    assert weight_bytes(a_shape(), gpus) == expected


@pytest.mark.parametrize(
    ("shape", "gpus", "problem"),
    [
        (a_shape(), 4, None),
        (a_shape(heads=28, kv_heads=4), 8, "must divide the model's 28 attention heads, got 8"),
        (a_shape(heads=24, kv_heads=6), 4, "must divide the model's 6 KV heads or be a multiple"),
        (a_shape(heads=48, kv_heads=1), 2, None),
        (DEEPSEEK_V3, 8, None),
    ],
)
def test_heads_must_be_shared_evenly(shape: ModelShape, gpus: int, problem: str | None) -> None:
    found = group_problem(shape, gpus)
    assert found == problem if problem is None else found is not None and problem in found


def test_a_pool_has_whole_blocks_and_never_less_than_none() -> None:
    assert pool_blocks(1000, 300) == 3
    assert pool_blocks(-1, 300) == 0
