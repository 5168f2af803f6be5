"""How an iteration of a simulated instance is composed and how long it lasts.

As vLLM does it: all running decodes, then the chunks of prompts under way, then admissions in order
of arrival, under one token budget, and shadow chunks last; KV for prompt and output is reserved at
admission. Every iteration gives each decode one token, so the decodes are counted together: an
iteration costs the same few steps whether one or 200 requests decode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.sim.admission import begin_prefill, reserved_tokens
from bench.sim.costs import chunk_attention_s, decode_attention_s, shared_s
from bench.sim.kv_cache import has_room
from bench.sim.lists import first_of, length_of
from bench.sim.rows import CHUNKED, DECODE, MAX_SHADOW_CHUNKS, NEVER_S, NONE, WAITING
from bench.sim.shadow_budget import EAGER, REQUEST, carries_routed
from bench.sim.shadow_chunks import (
    fill_budget,
    look_again_s,
    started_job,
    take_earlier,
    take_whole,
)

if TYPE_CHECKING:
    from bench.sim.world import World


def start_iteration(world: World, instance: int) -> None:
    """If the instance is idle and has work."""
    row, cluster = world.instances[instance], world.cluster[0]
    if row.iterations_started > row.iterations_ended:
        return
    row.iteration_end_s = NEVER_S
    if row.role != DECODE:
        admit(world, instance)
    tokens, chunks, attention_s = _foreground(world, instance)
    sequences, base_s = row.decode_requests + chunks, 0.0
    if tokens > 0:
        base_s = attention_s + shared_s(world, row.model, tokens, sequences)
    duration_s = base_s
    if row.first_job != NONE:
        duration_s = with_shadows_s(world, instance, tokens, sequences, attention_s, base_s)
    if duration_s == 0:
        row.iteration_end_s = look_again_s(world, instance)
        return
    row.iterations_started += 1
    row.iteration_decodes = row.decode_requests
    row.iteration_start_s = cluster.now_s
    row.iteration_end_s = cluster.now_s + duration_s
    row.iteration_shadow_s = duration_s - base_s
    row.iteration_is_decode_only = int(chunks == 0)
    row.iteration_is_busy = int(base_s > 0)
    row.iteration_is_routed = int(cluster.has_shadows and carries_routed(world, instance))
    row.busy_s += duration_s


def _foreground(world: World, instance: int) -> tuple[int, int, float]:
    """Tokens and chunks of requests, and the attention of all of them."""
    row = world.instances[instance]
    tokens, chunks, attention_s = row.decode_requests, 0, decode_attention_s(world, instance)
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
    return tokens, chunks, attention_s


def with_shadows_s(
    world: World, instance: int, tokens: int, sequences: int, attention_s: float, base_s: float
) -> float:
    """The shadow chunks join: what the iteration lasts then, 0 if it is empty."""
    row, controller = world.instances[instance], world.cluster[0].controller
    if controller not in (EAGER, REQUEST):
        fill_budget(world, instance, tokens, sequences, attention_s, base_s)
    if row.shadow_chunks == 0:
        return base_s
    first = instance * MAX_SHADOW_CHUNKS
    for place in range(first, first + row.shadow_chunks):
        chunk = world.chunks[place]
        tokens += chunk.tokens
        attention_s += chunk_attention_s(world, row.model, chunk.tokens, chunk.start)
    return attention_s + shared_s(world, row.model, tokens, sequences + row.shadow_chunks)


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
    started = NONE
    if cluster.controller == REQUEST:
        started = started_job(world, instance)
        if started != NONE:
            left -= take_whole(world, started, instance, left)
    left = _admit_waiting(world, instance, left)
    if length_of(world, instance, WAITING) > 0 or row.first_job == NONE:
        return
    if cluster.controller == EAGER:
        take_earlier(world, instance, left, NEVER_S)
    elif cluster.controller == REQUEST and started == NONE:
        take_whole(world, row.first_job, instance, left)


def _admit_waiting(world: World, instance: int, left: int) -> int:
    row, cluster = world.instances[instance], world.cluster[0]
    row.admission_blocked = 0
    while left > 0 and first_of(world, instance, WAITING) != NONE:
        number = first_of(world, instance, WAITING)
        if cluster.controller == EAGER:
            left = take_earlier(world, instance, left, world.requests[number].arrival_s)
            if left == 0:
                break
        sequences = row.decode_requests + length_of(world, instance, CHUNKED)
        sequences += row.transferring_requests + row.shadow_chunks
        if sequences >= cluster.max_sequences:
            break
        needed = reserved_tokens(world, number, instance)
        if not has_room(world, instance, needed):
            row.admission_blocked = 1
            break
        begin_prefill(world, instance, number, needed)
        request = world.requests[number]
        if request.ready_s <= cluster.now_s:
            request.chunk_tokens = min(request.uncached_tokens, left)
            left -= request.chunk_tokens
    return left
