"""The event loop of a simulated cluster: READ FIRST.

Four kinds of event, and at the same time in this order: an iteration ends, a transfer ends, a
session's next call arrives, a request of normal traffic arrives. Among equals the lower number goes
first. So the same input gives the same run, compiled or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.sim.iteration import join_decodes, reserved_tokens, start_iteration
from bench.sim.kv_cache import has_room, held_tokens, release, reserve
from bench.sim.lists import append, first_of, pop_first
from bench.sim.placing import pick_decode, pick_prefill
from bench.sim.session_heap import pop_session, push_session
from bench.sim.world import (
    CHUNKED,
    COLOCATED,
    DECODE,
    NEVER_S,
    NONE,
    PREFILL,
    TRANSFERRING,
    WAITING,
)

if TYPE_CHECKING:
    from bench.sim.world import World

ITERATION_ENDS, TRANSFER_ENDS, CALL_ARRIVES, REQUEST_ARRIVES = 0, 1, 2, 3


def run_until(world: World, until_s: float) -> None:
    """All events up to this time; a run may go on later."""
    cluster = world.cluster[0]
    while True:
        kind, instance, time_s = next_event(world)
        if time_s > until_s or time_s >= NEVER_S:
            break
        assert time_s >= cluster.now_s
        cluster.now_s = time_s
        cluster.events += 1
        if kind == ITERATION_ENDS:
            on_iteration_end(world, instance)
        elif kind == TRANSFER_ENDS:
            on_transfer_end(world, instance)
        elif kind == CALL_ARRIVES:
            on_call(world)
        else:
            on_normal_request(world)


def next_event(world: World) -> tuple[int, int, float]:
    """Kind, instance and time. With a few dozen instances a scan is quicker than a heap."""
    cluster = world.cluster[0]
    kind, number, time_s = REQUEST_ARRIVES, NONE, NEVER_S
    if cluster.next_normal < cluster.normal_requests:
        time_s = world.requests[cluster.next_normal].arrival_s
    if cluster.waiting_sessions > 0:
        call_s = world.sessions[world.heap[0]].next_call_s
        if call_s <= time_s:
            kind, time_s = CALL_ARRIVES, call_s
    for instance in range(cluster.instances - 1, -1, -1):
        row = world.instances[instance]
        if row.transferring_requests > 0 and row.transfer_end_s <= time_s:
            kind, number, time_s = TRANSFER_ENDS, instance, row.transfer_end_s
    for instance in range(cluster.instances - 1, -1, -1):
        end_s = world.instances[instance].iteration_end_s
        if end_s <= time_s and end_s < NEVER_S:
            kind, number, time_s = ITERATION_ENDS, instance, end_s
    return kind, number, time_s


def on_normal_request(world: World) -> None:
    cluster = world.cluster[0]
    request = cluster.next_normal
    cluster.next_normal += 1
    place(world, request)


def on_call(world: World) -> None:
    """The session's next call; one that keeps nothing of the history has compacted it."""
    session = pop_session(world)
    row = world.sessions[session]
    request = row.first_request + row.calls_begun
    if row.calls_begun > 0 and world.requests[request].kept_tokens == 0:
        row.epoch += 1
    row.calls_begun += 1
    world.requests[request].arrival_s = world.cluster[0].now_s
    place(world, request)


def place(world: World, number: int) -> None:
    request = world.requests[number]
    instance = pick_prefill(world, number)
    request.prefill_instance = instance
    request.uncached_tokens = request.prompt_tokens - held_tokens(world, number, instance)
    world.instances[instance].pending_prefill_tokens += request.uncached_tokens
    append(world, instance, WAITING, number)
    start_iteration(world, instance)


def on_iteration_end(world: World, instance: int) -> None:
    row = world.instances[instance]
    row.iterations_ended += 1
    row.iteration_end_s = NEVER_S
    row.context_tokens += row.iteration_decodes
    row.computed_tokens += row.iteration_decodes
    if row.next_finish == row.iterations_ended:
        finish_decodes(world, instance)
    end_chunks(world, instance)
    if row.role == DECODE:
        admit_decodes(world, instance)
    start_iteration(world, instance)


def finish_decodes(world: World, instance: int) -> None:
    """Those that have their last token leave; the others close ranks."""
    row, base = world.instances[instance], instance * world.cluster[0].max_sequences
    kept, following = 0, NONE
    for place in range(row.decode_requests):
        number = world.slots[base + place]
        request = world.requests[number]
        if request.finish_iteration == row.iterations_ended:
            row.context_tokens -= request.prompt_tokens + request.output_tokens
            leave(world, instance, number, request.prompt_tokens + request.output_tokens - 1)
            finish(world, number)
            continue
        if following == NONE or request.finish_iteration < following:
            following = request.finish_iteration
        world.slots[base + kept] = number
        kept += 1
    row.decode_requests = kept
    row.next_finish = following


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
        request.decode_instance = pick_decode(world, number)
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
        if row.transferring_requests == 0:
            row.transfer_end_s = request.transfer_end_s
        row.transferring_requests += 1
        append(world, instance, TRANSFERRING, number)


def on_transfer_end(world: World, instance: int) -> None:
    row = world.instances[instance]
    number = pop_first(world, instance, TRANSFERRING)
    row.transferring_requests -= 1
    following = first_of(world, instance, TRANSFERRING)
    row.transfer_end_s = NEVER_S if following == NONE else world.requests[following].transfer_end_s
    source = world.requests[number].prefill_instance
    leave(world, source, number, world.requests[number].prompt_tokens)
    join_decodes(world, instance, number)
    start_iteration(world, instance)
    # The room on the prefill instance may be what its queue waited for.
    start_iteration(world, source)


def leave(world: World, instance: int, number: int, kept: int) -> None:
    """The KV of what the instance computed stays cached; the last token was never fed back."""
    release(world, number, instance, reserved_tokens(world, number, instance), kept)


def finish(world: World, number: int) -> None:
    request, cluster = world.requests[number], world.cluster[0]
    request.finished_s = cluster.now_s
    cluster.finished_requests += 1
    if request.session == NONE:
        return
    session = world.sessions[request.session]
    if session.calls_begun < session.calls:
        following = world.requests[session.first_request + session.calls_begun]
        push_session(world, request.session, cluster.now_s + following.gap_s)
