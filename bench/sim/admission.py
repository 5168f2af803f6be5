"""How a request of a simulated instance gets its memory, and what it finds there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.sim.host_tier import host_end_tokens, restore_end_s
from bench.sim.kv_cache import (
    device_tokens,
    reserve,
    session_entry,
    take_unused,
)
from bench.sim.kv_lists import touch
from bench.sim.lists import append, pop_first
from bench.sim.rows import (
    CHUNKED,
    HOST_KV,
    NONE,
    PREFILL,
    SHADOW_KV,
    TRANSFERRING,
    WAITING,
)
from policy.slack import decode_due_s

if TYPE_CHECKING:
    from bench.sim.world import World


def begin_prefill(world: World, instance: int, number: int, needed: int) -> None:
    """What it finds on the host, or on the instance that is for shadows, has to come first."""
    row, request = world.instances[instance], world.requests[number]
    pop_first(world, instance, WAITING)
    request.admitted_s = world.cluster[0].now_s
    request.ready_s = world.cluster[0].now_s
    held = 0
    if request.session == NONE:
        reserve(world, number, instance, needed)
    else:
        held = _find_prefix(world, instance, number, needed)
    # It may hold more or less now than when the request was placed.
    uncached = request.prompt_tokens - held
    row.pending_prefill_tokens += uncached - request.uncached_tokens
    request.uncached_tokens = uncached
    request.cached_tokens = held
    request.computed_tokens = held
    if request.ready_s <= world.cluster[0].now_s:
        append(world, instance, CHUNKED, number)
        return
    if row.transferring_requests == 0:
        row.transfer_end_s = request.ready_s
    row.transferring_requests += 1
    row.last_ready_s = request.ready_s
    append(world, instance, TRANSFERRING, number)


def reserved_tokens(world: World, request: int, instance: int) -> int:
    """A prefill instance hands the request over before it generates more than one token."""
    row = world.requests[request]
    if world.instances[instance].role == PREFILL:
        return row.prompt_tokens
    return row.prompt_tokens + row.output_tokens


def join_decodes(world: World, instance: int, number: int) -> None:
    """With its first token generated; the next one comes with the next iteration to start."""
    row, request, cluster = world.instances[instance], world.requests[number], world.cluster[0]
    request.finish_iteration = row.iterations_started + request.output_tokens - 1
    if row.next_finish == NONE or request.finish_iteration < row.next_finish:
        row.next_finish = request.finish_iteration
    if request.session != NONE:
        row.routed_decodes += 1
        if cluster.has_shadows and request.output_tokens > cluster.resubmit_tokens:
            extension = row.iterations_started + cluster.resubmit_tokens - 1
            request.next_extension = extension
            if row.next_extension == NONE or extension < row.next_extension:
                row.next_extension = extension
    else:
        tpot_s = world.models[row.model].tpot_slo_s
        begun = row.iterations_started + 1
        request.due_s = decode_due_s(cluster.margin, tpot_s, -begun, request.first_token_s)
        row.least_due_s = min(row.least_due_s, request.due_s)
    world.slots[instance * cluster.max_sequences + row.decode_requests] = number
    row.decode_requests += 1
    row.context_tokens += request.prompt_tokens + 1


def _find_prefix(world: World, instance: int, number: int, needed: int) -> int:
    """Returns how much of the prompt it need not compute."""
    request, cluster = world.requests[number], world.cluster[0]
    device = device_tokens(world, request.session, instance)
    if host_end_tokens(world, request.session, instance, device) > device:
        # Before the others make room: what they spill must not push out what is about to be read.
        touch(world, HOST_KV, session_entry(world, request.session, instance))
    held = reserve(world, number, instance, needed)
    if held > device and cluster.has_oracle and request.is_switch:
        request.oracle_tokens = held - device
    elif held > device:
        request.host_tokens = held - device
        request.ready_s = restore_end_s(world, instance, held - device)
    if cluster.kv_moves:
        held += _moved_tokens(world, instance, number, held)
    if request.ready_s > cluster.now_s:
        # First in, first out, over whichever of the two ways it came.
        request.ready_s = max(request.ready_s, world.instances[instance].last_ready_s)
    return held


def _moved_tokens(world: World, instance: int, number: int, held: int) -> int:
    """From the instance that is there for shadows, over the link into this one."""
    row, request, cluster = world.instances[instance], world.requests[number], world.cluster[0]
    source = world.models[row.model].dedicated_instance
    there = min(
        device_tokens(world, request.session, source),
        request.kept_tokens,
        request.prompt_tokens - 1,
    )
    moved = there - there % cluster.block_tokens - held
    if moved <= 0:
        return 0
    entry = session_entry(world, request.session, source)
    request.shadow_tokens += take_unused(world, entry, held + moved)
    touch(world, SHADOW_KV, entry)
    row.link_free_s = max(row.link_free_s, cluster.now_s)
    row.link_free_s += moved * world.models[row.model].transfer_s_per_token
    request.ready_s = max(request.ready_s, row.link_free_s)
    return moved
