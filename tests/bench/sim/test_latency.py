"""The facts that the H100 form must reproduce, and what holds for every batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.sim.hardware import LatencyMode, architectures, h100
from bench.sim.latency import PREFILL_CHUNK_TOKENS, Chunk, Iteration, LatencyModel

FACTS: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("h100_facts.json").read_text()
)["models"]
MODELS = sorted(architectures())
PRINTED = 0.06
"""ms: half a unit of the last digit that the facts print, and a little."""
LINK_BYTES_PER_S = 50e9


def test_all_fifteen_models_are_known() -> None:
    assert sorted(FACTS) == MODELS
    assert len(MODELS) == 15


@pytest.mark.parametrize("model", MODELS)
def test_linear_part_is_the_fitted_one(model: str) -> None:
    latency = LatencyModel(model)
    for tokens, expected_us in FACTS[model]["linear_us"].items():
        assert latency.linear_s(int(tokens)) * 1e6 == pytest.approx(expected_us, rel=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_cold_prefill_is_the_fitted_one(model: str) -> None:
    latency = LatencyModel(model)
    for tokens, expected_ms in FACTS[model]["prefill_ms"].items():
        assert latency.prefill_s(int(tokens)) * 1e3 == pytest.approx(
            expected_ms, rel=1e-4, abs=PRINTED
        )


@pytest.mark.parametrize("model", MODELS)
def test_decode_is_the_fitted_one(model: str) -> None:
    latency = LatencyModel(model)
    batch1_ms = latency.batch1_decode_s() * 1e3
    assert batch1_ms == pytest.approx(FACTS[model]["batch1_decode_ms"], abs=PRINTED)
    for batch, expected_ms in FACTS[model]["decode_ms"].items():
        sequences, context = map(int, batch.split("x"))
        iteration = Iteration(decode_contexts=(context,) * sequences)
        assert latency.iteration_s(iteration) * 1e3 == pytest.approx(
            expected_ms, rel=2e-3, abs=PRINTED
        )


@pytest.mark.parametrize("model", MODELS)
def test_tpot_slo_is_five_batch1_decodes_and_not_below_25_ms(model: str) -> None:
    assert LatencyModel(model).tpot_slo_s() * 1e3 == pytest.approx(
        FACTS[model]["tpot_slo_ms"], abs=PRINTED
    )


@pytest.mark.parametrize("model", MODELS)
def test_kv_sizes(model: str) -> None:
    latency = LatencyModel(model)
    assert latency.kv_bytes_per_token == FACTS[model]["kv_bytes_per_token"]
    assert latency.kv_pool_tokens == pytest.approx(FACTS[model]["kv_pool_tokens"], abs=2)


def test_gemma_7b_keeps_458752_bytes_per_token() -> None:
    assert LatencyModel("Gemma-7B").kv_bytes_per_token == 458_752


@pytest.mark.parametrize(
    ("model", "expected_ms"),
    [("Llama-3.1-8B", 165), ("Llama-3.1-70B", 103), ("Gemma-7B", 578), ("Granite-34B-code", 28)],
)
def test_63k_tokens_over_50_gb_per_s(model: str, expected_ms: int) -> None:
    transfer_s = LatencyModel(model).kv_transfer_s(63_000, LINK_BYTES_PER_S)
    assert transfer_s * 1e3 == pytest.approx(expected_ms, abs=0.5)


@pytest.mark.parametrize("mode", list(LatencyMode))
@pytest.mark.parametrize("model", MODELS)
def test_table_is_the_function(model: str, mode: LatencyMode) -> None:
    latency = LatencyModel(model, mode)
    table = latency.linear_table_s(300)
    assert table[0] == 0
    for tokens in (1, 2, 77, 300):
        assert table[tokens] == pytest.approx(latency.linear_s(tokens), rel=1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_testbed_is_slower_than_its_kernels(model: str) -> None:
    iteration = Iteration(decode_contexts=(1000,) * 20, chunks=(Chunk(2028, 5000),))
    kernel_s = LatencyModel(model, LatencyMode.KERNEL).iteration_s(iteration)
    assert LatencyModel(model, LatencyMode.VLLM_TESTBED).iteration_s(iteration) > kernel_s


models = st.sampled_from(MODELS)
modes = st.sampled_from(list(LatencyMode))
contexts = st.lists(st.integers(1, 200_000), max_size=40)
chunks = st.lists(st.tuples(st.integers(1, 4096), st.integers(0, 200_000)), min_size=1, max_size=3)


@settings(max_examples=60)
@given(models, modes, contexts, chunks, st.integers(1, 4000))
def test_more_work_never_takes_less_time(
    model: str, mode: LatencyMode, decodes: list[int], work: list[tuple[int, int]], more: int
) -> None:
    latency = LatencyModel(model, mode)
    decode_contexts = tuple(decodes)
    (new, context), *others = work
    rest = tuple(Chunk(*chunk) for chunk in others)

    def duration_s(new: int, context: int, decode_contexts: tuple[int, ...]) -> float:
        return latency.iteration_s(Iteration(decode_contexts, (Chunk(new, context), *rest)))

    base_s = duration_s(new, context, decode_contexts)
    assert duration_s(new + more, context, decode_contexts) > base_s
    assert duration_s(new, context + more, decode_contexts) >= base_s
    assert duration_s(new, context, (*decode_contexts, more)) > base_s
    without = Iteration(chunks=(Chunk(new, context), *rest))
    assert latency.iteration_s(without) <= base_s


@settings(max_examples=30)
@given(models, st.integers(2, 60_000), st.data())
def test_cached_tokens_only_save(model: str, prompt: int, data: st.DataObject) -> None:
    latency = LatencyModel(model)
    # Whole chunks: with other boundaries a few tokens less may cost a millionth more.
    cached = PREFILL_CHUNK_TOKENS * data.draw(st.integers(0, (prompt - 1) // PREFILL_CHUNK_TOKENS))
    assert latency.prefill_s(prompt, cached) <= latency.prefill_s(prompt)


def test_more_gpus_are_faster_and_hold_more() -> None:
    one, two = (LatencyModel("Llama-3.1-8B", tensor_parallel=n) for n in (1, 2))
    assert two.prefill_s(8192) < one.prefill_s(8192)
    assert two.kv_pool_tokens > 2 * one.kv_pool_tokens


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LatencyModel("GPT-4"), "model 'GPT-4' has no architecture here; known are"),
        (
            lambda: LatencyModel("Llama-3.1-8B", tensor_parallel=3),
            r"tensor_parallel must be one of \[1, 2, 4, 8\], got 3",
        ),
        (
            lambda: LatencyModel("Qwen2.5-7B", tensor_parallel=8),
            "tensor_parallel 8 does not divide the 28 attention heads",
        ),
        (
            lambda: LatencyModel("Llama-3.1-70B", tensor_parallel=1).kv_pool_tokens,
            "does not fit on 1 GPUs: 141.1 of 74.3 GB usable",
        ),
        (lambda: Chunk(0, 5), "chunk.new_tokens must be 1 to 65536, got 0"),
        (lambda: Chunk(1, -1), "chunk.context_tokens must be 0 to 2097152, got -1"),
        (lambda: Iteration(), "an iteration without decodes and chunks does not run"),
        (lambda: Iteration((0,)), "decode context must be 1 to 2097152 tokens, got 0"),
        (
            lambda: Iteration(chunks=(Chunk(65_000, 0), Chunk(537, 0))),
            "an iteration has at most 65536 tokens, got 65537",
        ),
        (lambda: LatencyModel("Gemma-7B").prefill_s(10, 10), "10 of 10 cached"),
        (
            lambda: LatencyModel("Gemma-7B").kv_transfer_s(1, 0),
            "bytes_per_s_per_gpu must be > 0, got 0",
        ),
        (lambda: h100().operator("conv"), "no coefficients of operator 'conv'; there are"),
    ],
)
def test_wrong_input_is_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_data_names_its_source() -> None:
    assert "aiconfigurator-core 0.12.0" in h100().source
    assert all(model.source for model in architectures().values())
    assert np.isfinite([operator.t0_us for operator in h100().operators.values()]).all()
