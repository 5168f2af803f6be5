"""How long one operator takes on one GPU: plain functions of numbers.

Each takes seconds, tokens, FLOP/s and bytes/s and returns seconds. No object, no global state and
no branch on a type, so that numba compiles the very same functions and numpy evaluates those
without a `max` over whole arrays. The forms were fitted to measured tables (data/h100.json)."""

from __future__ import annotations

BYTES_PER_VALUE = 2
"""bfloat16 activations, weights and KV; only the experts of some models are narrower."""
PREFILL_TILE_TOKENS = 128
"""Rows of the prompt that one attention block works on."""
STREAMING_PROCESSORS = 132
"""Of one H100: where a short chunk leaves most of them idle, the longest block decides."""


def gemm_s(
    tokens: float,
    out_width: float,
    in_width: float,
    t0_s: float,
    flops_per_s: float,
    bytes_per_s: float,
    power: float,
) -> float:
    """One weight matrix: a smooth maximum of compute and of memory traffic."""
    compute_s = 2 * tokens * out_width * in_width / flops_per_s
    values = out_width * in_width + tokens * in_width + tokens * out_width
    memory_s = BYTES_PER_VALUE * values / bytes_per_s
    overlapped_s: float = (compute_s**power + memory_s**power) ** (1 / power)
    return t0_s + overlapped_s


def distinct_experts(tokens: float, experts: float, experts_per_token: float) -> float:
    """Expected number of experts that at least one token of the iteration picks."""
    missed_share: float = (1 - 1 / experts) ** (tokens * experts_per_token)
    return experts * (1 - missed_share)


def moe_s(
    tokens: float,
    hidden: float,
    intermediate: float,
    experts: float,
    experts_per_token: float,
    bytes_per_weight: float,
    t0_s: float,
    s_per_expert: float,
    tokens_lost_per_expert: float,
    flops_per_s: float,
    bytes_per_s: float,
    power: float,
) -> float:
    """The expert layers: active weights for compute, the weights of all picked experts for memory.
    A small group of tokens at one expert computes as if it had `tokens_lost_per_expert` more."""
    pairs = tokens * experts_per_token
    picked = distinct_experts(tokens, experts, experts_per_token)
    flops = 6 * hidden * intermediate * (pairs + tokens_lost_per_expert * picked)
    weights_bytes = picked * 3 * hidden * intermediate * bytes_per_weight
    activation_bytes = BYTES_PER_VALUE * pairs * (2 * hidden + 3 * intermediate)
    compute_s = flops / flops_per_s
    memory_s = (weights_bytes + activation_bytes) / bytes_per_s
    overlapped_s: float = (compute_s**power + memory_s**power) ** (1 / power)
    return t0_s + s_per_expert * picked + overlapped_s


def allreduce_s(
    tokens: float, hidden: float, t0_s: float, s_per_sqrt_kib: float, bytes_per_s: float
) -> float:
    size_bytes = BYTES_PER_VALUE * tokens * hidden
    sqrt_kib: float = (size_bytes / 1024) ** 0.5
    return t0_s + s_per_sqrt_kib * sqrt_kib + size_bytes / bytes_per_s


def elementwise_s(
    tokens: float, values_per_token: float, kernels: float, t0_s: float, bytes_per_s: float
) -> float:
    """Norms, rotary embedding, activation, residual: assumed, not measured."""
    return kernels * t0_s + tokens * BYTES_PER_VALUE * values_per_token / bytes_per_s


def prefill_attention_s(
    new_tokens: float,
    context_tokens: float,
    heads: float,
    kv_heads: float,
    head_dim: float,
    t0_s: float,
    flops_per_s: float,
    bytes_per_s: float,
    longest_block_ratio: float,
    kv_bytes_per_s: float,
) -> float:
    """One layer, one chunk of `new_tokens` on `context_tokens` that are cached already.

    No source measures a cached prefix: the term of the context is an extrapolation."""
    attended = context_tokens + (new_tokens + PREFILL_TILE_TOKENS) / 2
    compute_s = 4 * heads * head_dim * new_tokens * attended / flops_per_s
    block_flops = 4 * PREFILL_TILE_TOKENS * head_dim * (context_tokens + new_tokens)
    block_s = block_flops * STREAMING_PROCESSORS / (longest_block_ratio * flops_per_s)
    chunk_bytes = BYTES_PER_VALUE * new_tokens * head_dim * (2 * heads + 2 * kv_heads)
    context_bytes = 2 * BYTES_PER_VALUE * context_tokens * kv_heads * head_dim
    traffic_s = chunk_bytes / bytes_per_s + context_bytes / kv_bytes_per_s
    return t0_s + max(compute_s, block_s) + traffic_s


def decode_attention_s(
    sequences: float,
    context_tokens: float,
    kv_heads: float,
    head_dim: float,
    t0_s: float,
    kv_bytes_per_s: float,
    s_per_sequence_kv_head: float,
) -> float:
    """One layer; `context_tokens` is the sum over the sequences."""
    read_s = 2 * BYTES_PER_VALUE * kv_heads * head_dim * context_tokens / kv_bytes_per_s
    return t0_s + read_s + s_per_sequence_kv_head * sequences * kv_heads


def recurrent_decode_s(
    sequences: float, value_heads: float, t0_s: float, s_per_head: float
) -> float:
    """One gated-DeltaNet layer: its state has a fixed size, so the context does not count."""
    return t0_s + s_per_head * value_heads * sequences


def recurrent_prefill_s(
    new_tokens: float, value_heads: float, t0_s: float, s_per_head: float, s_per_token: float
) -> float:
    return t0_s + (s_per_head * value_heads + s_per_token) * new_tokens


def transfer_s(tokens: float, bytes_per_token: float, link_bytes_per_s: float) -> float:
    """KV over a link whose latency is small against a push."""
    return tokens * bytes_per_token / link_bytes_per_s
