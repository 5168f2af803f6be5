"""What the parts of a simulated iteration cost: the H100 form (`latency`), spread out over rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.sim.operators import prefill_attention_s

if TYPE_CHECKING:
    from bench.sim.world import World


def decode_attention_s(world: World, instance: int) -> float:
    row = world.instances[instance]
    model = world.models[row.model]
    if row.decode_requests == 0:
        return 0.0
    total_s = model.decode_fixed_s + model.decode_s_per_sequence * row.decode_requests
    total_s += model.decode_s_per_context_token * row.context_tokens
    if model.window_layers > 0:
        total_s += model.decode_s_per_window_token * _window_tokens(world, instance)
    return total_s


def _window_tokens(world: World, instance: int) -> int:
    """Contexts cut at the window, added up. These have to be looked at one by one."""
    row, base = world.instances[instance], instance * world.cluster[0].max_sequences
    window, total = world.models[row.model].window_tokens, 0
    for place in range(row.decode_requests):
        request = world.requests[world.slots[base + place]]
        missing = request.finish_iteration - row.iterations_started
        total += min(request.prompt_tokens + request.output_tokens - missing, window)
    return total


def chunk_attention_s(world: World, model: int, new_tokens: int, context_tokens: int) -> float:
    row = world.models[model]
    total_s = row.recurrent_fixed_s + row.recurrent_s_per_token * new_tokens
    total_s += row.full_layers * _layer_s(world, model, new_tokens, context_tokens)
    if row.window_layers > 0:
        visible = min(context_tokens, row.window_tokens)
        total_s += row.window_layers * _layer_s(world, model, new_tokens, visible)
    return total_s


def _layer_s(world: World, model: int, new_tokens: int, context_tokens: int) -> float:
    row = world.models[model]
    return prefill_attention_s(
        new_tokens,
        context_tokens,
        row.heads,
        row.kv_heads,
        row.head_dim,
        row.prefill_t0_s,
        row.prefill_flops_per_s,
        row.prefill_bytes_per_s,
        row.longest_block_ratio,
        row.kv_bytes_per_s,
    )


def shared_s(world: World, model: int, tokens: int, sequences: int) -> float:
    """What depends on the number of tokens and of sequences alone."""
    cluster, row = world.cluster[0], world.models[model]
    linear_s = world.linear_s[model * (cluster.max_batch_tokens + 1) + tokens]
    head_s = world.head_s[model * (cluster.max_sequences + 1) + sequences]
    host_s = row.host_fixed_s + row.host_s_per_sequence * sequences
    return float(linear_s + head_s + host_s)
