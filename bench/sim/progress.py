"""What has happened when an iteration of a simulated instance, or a transfer into it, is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.sim.admission import join_decodes, reserved_tokens
from bench.sim.kv_cache import has_room, release, reserve
from bench.sim.lists import append, first_of, pop_first
from bench.sim.placing import pick_decode
from bench.sim.pushes import end_push, start_push, want_push
from bench.sim.rows import (
    CHUNKED,
    COLOCATED,
    DECODE,
    MAX_SHADOW_CHUNKS,
    NEVER_S,
    NONE,
    PREFILL,
    TRANSFERRING,
    WAITING,
)
from bench.sim.session_heap import push_session
from bench.sim.shadow_budget import settle_credit
from bench.sim.shadow_jobs import end_chunk, extend_jobs

if TYPE_CHECKING:
    from bench.sim.world import World


def settle_iteration(world: World, instance: int) -> None:
    row = world.instances[instance]
    row.iterations_ended += 1
    row.context_tokens += row.iteration_decodes
    row.computed_tokens += row.iteration_decodes
    settle_credit(world, instance)
    first = instance * MAX_SHADOW_CHUNKS
    for place in range(first, first + row.shadow_chunks):
        if end_chunk(world, place, instance):
            want_push(world, world.chunks[place].job, instance)
    row.shadow_chunks = 0
    if row.next_extension == row.iterations_ended:
        extend_grown(world, instance)
    if row.next_finish == row.iterations_ended:
        finish_decodes(world, instance)
    end_chunks(world, instance)
    if row.role == DECODE:
        admit_decodes(world, instance)


def extend_grown(world: World, instance: int) -> None:
    """The output of these calls is so much longer that their shadows are worth extending."""
    row, cluster = world.instances[instance], world.cluster[0]
    following, base = NONE, instance * cluster.max_sequences
    for place in range(row.decode_requests):
        request = world.requests[world.slots[base + place]]
        if request.next_extension == row.iterations_ended:
            missing = request.finish_iteration - row.iterations_ended
            grown = request.prompt_tokens + request.output_tokens - missing
            extend_jobs(world, request.session, grown)
            request.next_extension += cluster.resubmit_tokens
        later = request.next_extension > row.iterations_ended
        if later and (following == NONE or request.next_extension < following):
            following = request.next_extension
    row.next_extension = following


def finish_decodes(world: World, instance: int) -> None:
    """Those that have their last token leave; the others close ranks."""
    row, base = world.instances[instance], instance * world.cluster[0].max_sequences
    kept, following, due_s = 0, NONE, NEVER_S
    for place in range(row.decode_requests):
        number = world.slots[base + place]
        request = world.requests[number]
        if request.finish_iteration == row.iterations_ended:
            row.context_tokens -= request.prompt_tokens + request.output_tokens
            row.routed_decodes -= int(request.session != NONE)
            leave(world, instance, number, request.prompt_tokens + request.output_tokens - 1)
            finish(world, number)
            continue
        if following == NONE or request.finish_iteration < following:
            following = request.finish_iteration
        due_s = min(due_s, request.due_s)
        world.slots[base + kept] = number
        kept += 1
    row.decode_requests = kept
    row.next_finish = following
    row.least_due_s = due_s


def end_chunks(world: World, instance: int) -> None:
    """Prompts are computed in order, so those that are complete now are the first in the list."""
    row = world.instances[instance]
    number = first_of(world, instance, CHUNKED)
    while number != NONE:
        request = world.requests[number]
        request.computed_tokens += request.chunk_tokens
        row.pending_prefill_tokens -= request.chunk_tokens
        row.computed_tokens += request.chunk_tokens
        request.chunk_tokens = 0
        number = request.next_in_list
    number = first_of(world, instance, CHUNKED)
    while number != NONE:
        request = world.requests[number]
        if request.computed_tokens < request.prompt_tokens:
            break
        pop_first(world, instance, CHUNKED)
        give_first_token(world, instance, number)
        number = first_of(world, instance, CHUNKED)


def give_first_token(world: World, instance: int, number: int) -> None:
    """A prefill instance hands the request over, and keeps its KV until it has been moved."""
    request = world.requests[number]
    request.first_token_s = world.cluster[0].now_s
    if request.output_tokens == 1:
        leave(world, instance, number, request.prompt_tokens)
        finish(world, number)
    elif world.instances[instance].role == COLOCATED:
        join_decodes(world, instance, number)
    else:
        assert world.instances[instance].role == PREFILL
        needed = request.prompt_tokens + request.output_tokens
        request.decode_instance = pick_decode(world, request.session, request.model, needed)
        append(world, request.decode_instance, WAITING, number)
        admit_decodes(world, request.decode_instance)


def admit_decodes(world: World, instance: int) -> None:
    """In order of arrival: room for prompt and output, then the transfer of what is missing. The
    link carries one transfer after the other, at full rate."""
    row, cluster = world.instances[instance], world.cluster[0]
    while row.decode_requests + row.transferring_requests < cluster.max_sequences:
        number = first_of(world, instance, WAITING)
        if number == NONE:
            break
        request = world.requests[number]
        needed = reserved_tokens(world, number, instance)
        if not has_room(world, instance, needed):
            break
        pop_first(world, instance, WAITING)
        held = reserve(world, number, instance, needed)
        request.decode_admitted_s = cluster.now_s
        request.moved_tokens = request.prompt_tokens - held
        duration_s = request.moved_tokens * world.models[request.model].transfer_s_per_token
        row.link_free_s = max(row.link_free_s, cluster.now_s) + duration_s
        request.transfer_end_s = row.link_free_s
        if row.transferring_requests == 0 and row.push_job == NONE:
            row.transfer_end_s = request.transfer_end_s
        row.transferring_requests += 1
        append(world, instance, TRANSFERRING, number)


def on_transfer_end(world: World, instance: int) -> int:
    """Returns the instance that the KV has left, which has room now."""
    row = world.instances[instance]
    if row.push_job != NONE:
        end_push(world, instance)
        return instance
    number = pop_first(world, instance, TRANSFERRING)
    row.transferring_requests -= 1
    following = first_of(world, instance, TRANSFERRING)
    if row.role != DECODE:
        row.transfer_end_s = NEVER_S if following == NONE else world.requests[following].ready_s
        append(world, instance, CHUNKED, number)
        return instance
    row.transfer_end_s = NEVER_S if following == NONE else world.requests[following].transfer_end_s
    source = world.requests[number].prefill_instance
    leave(world, source, number, world.requests[number].prompt_tokens)
    join_decodes(world, instance, number)
    start_push(world, instance)
    return source


def leave(world: World, instance: int, number: int, kept: int) -> None:
    """The KV of what the instance computed stays cached; the last token was never fed back."""
    release(world, number, instance, reserved_tokens(world, number, instance), kept)


def finish(world: World, number: int) -> None:
    request, cluster = world.requests[number], world.cluster[0]
    request.finished_s = cluster.now_s
    cluster.finished_requests += 1
    if request.session == NONE:
        return
    if cluster.has_shadows:
        extend_jobs(world, request.session, request.prompt_tokens + request.output_tokens)
    session = world.sessions[request.session]
    if session.calls_begun < session.calls:
        following = world.requests[session.first_request + session.calls_begun]
        push_session(world, request.session, cluster.now_s + following.gap_s)
