"""How an iteration of a simulated instance is composed and how long it lasts.

As vLLM does it: all running decodes, then the chunks of prompts under way, then admissions in order
of arrival, under one token budget; KV for prompt and output is reserved at admission. Every
iteration gives each decode one token, so the decodes are counted together: an iteration costs the
same few steps whether one or 200 requests decode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.sim.kv_cache import has_room, reserve
from bench.sim.lists import append, first_of, length_of, pop_first
from bench.sim.operators import prefill_attention_s
from bench.sim.world import CHUNKED, DECODE, NONE, PREFILL, WAITING

if TYPE_CHECKING:
    from bench.sim.world import World


def start_iteration(world: World, instance: int) -> None:
    """If the instance is idle and has work."""
    row, cluster = world.instances[instance], world.cluster[0]
    if row.iterations_started > row.iterations_ended:
        return
    if row.role != DECODE:
        admit(world, instance)
    tokens, chunks, attention_s = row.decode_requests, 0, 0.0
    number = first_of(world, instance, CHUNKED)
    while number != NONE:
        request = world.requests[number]
        if request.chunk_tokens > 0:
            tokens += request.chunk_tokens
            chunks += 1
            attention_s += chunk_attention_s(
                world, row.model, request.chunk_tokens, request.computed_tokens
            )
        number = request.next_in_list
    # Shadow chunks join here, last: the numeric core of policy.slack is asked how many tokens.
    if tokens == 0:
        return
    attention_s += decode_attention_s(world, instance)
    duration_s = attention_s + _shared_s(world, row.model, tokens, row.decode_requests + chunks)
    row.iterations_started += 1
    row.iteration_decodes = row.decode_requests
    row.iteration_end_s = cluster.now_s + duration_s
    row.busy_s += duration_s


def admit(world: World, instance: int) -> None:
    """Shares the token budget out, to prompts under way first."""
    row, cluster = world.instances[instance], world.cluster[0]
    left = cluster.max_batch_tokens - row.decode_requests
    number = first_of(world, instance, CHUNKED)
    while number != NONE:
        request = world.requests[number]
        request.chunk_tokens = min(request.prompt_tokens - request.computed_tokens, left)
        left -= request.chunk_tokens
        number = request.next_in_list
    row.admission_blocked = 0
    while left > 0 and first_of(world, instance, WAITING) != NONE:
        sequences = row.decode_requests + length_of(world, instance, CHUNKED)
        if sequences >= cluster.max_sequences:
            break
        number = first_of(world, instance, WAITING)
        needed = reserved_tokens(world, number, instance)
        if not has_room(world, instance, needed):
            row.admission_blocked = 1
            break
        begin_prefill(world, instance, number, needed)
        request = world.requests[number]
        request.chunk_tokens = min(request.uncached_tokens, left)
        left -= request.chunk_tokens


def begin_prefill(world: World, instance: int, number: int, needed: int) -> None:
    pop_first(world, instance, WAITING)
    append(world, instance, CHUNKED, number)
    held = reserve(world, number, instance, needed)
    request = world.requests[number]
    # It may hold more or less now than when the request was placed.
    uncached = request.prompt_tokens - held
    world.instances[instance].pending_prefill_tokens += uncached - request.uncached_tokens
    request.uncached_tokens = uncached
    request.cached_tokens = held
    request.computed_tokens = held
    request.admitted_s = world.cluster[0].now_s


def reserved_tokens(world: World, request: int, instance: int) -> int:
    """A prefill instance hands the request over before it generates more than one token."""
    row = world.requests[request]
    if world.instances[instance].role == PREFILL:
        return row.prompt_tokens
    return row.prompt_tokens + row.output_tokens


def join_decodes(world: World, instance: int, number: int) -> None:
    """With its first token generated; the next one comes with the next iteration to start."""
    row, request = world.instances[instance], world.requests[number]
    request.finish_iteration = row.iterations_started + request.output_tokens - 1
    if row.next_finish == NONE or request.finish_iteration < row.next_finish:
        row.next_finish = request.finish_iteration
    world.slots[instance * world.cluster[0].max_sequences + row.decode_requests] = number
    row.decode_requests += 1
    row.context_tokens += request.prompt_tokens + 1


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


def _shared_s(world: World, model: int, tokens: int, sequences: int) -> float:
    """What depends on the number of tokens and of sequences alone."""
    cluster, row = world.cluster[0], world.models[model]
    linear_s = world.linear_s[model * (cluster.max_batch_tokens + 1) + tokens]
    head_s = world.head_s[model * (cluster.max_sequences + 1) + sequences]
    host_s = row.host_fixed_s + row.host_s_per_sequence * sequences
    return float(linear_s + head_s + host_s)
