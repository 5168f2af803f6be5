"""The event loop of a simulated cluster: READ FIRST.

Four kinds of event, and at the same time in this order: an iteration ends, a transfer ends, a
session's next call arrives, a request of normal traffic arrives. Among equals the lower number goes
first. So the same input gives the same run, compiled or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.sim.iteration import start_iteration
from bench.sim.kv_cache import held_tokens
from bench.sim.lists import append
from bench.sim.placing import pick_prefill
from bench.sim.progress import on_transfer_end, settle_iteration
from bench.sim.pushes import start_push
from bench.sim.rows import NEVER_S, NONE, WAITING
from bench.sim.session_heap import pop_session
from bench.sim.shadow_jobs import call_arrives

if TYPE_CHECKING:
    from bench.sim.world import World

ITERATION_ENDS, TRANSFER_ENDS, CALL_ARRIVES, REQUEST_ARRIVES = 0, 1, 2, 3


def run_until(world: World, until_s: float) -> None:
    """All events up to this time, or until every request is finished; a run may go on later."""
    cluster = world.cluster[0]
    while cluster.finished_requests < cluster.requests:
        kind, instance, time_s = next_event(world)
        if time_s > until_s or time_s >= NEVER_S:
            break
        assert time_s >= cluster.now_s
        cluster.now_s = time_s
        cluster.events += 1
        if kind == ITERATION_ENDS:
            on_iteration_end(world, instance)
        elif kind == TRANSFER_ENDS:
            # The room that it left elsewhere may be what a queue waited for.
            source = on_transfer_end(world, instance)
            start_iteration(world, instance)
            start_iteration(world, source)
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
        end_s = world.instances[instance].transfer_end_s
        if end_s <= time_s and end_s < NEVER_S:
            kind, number, time_s = TRANSFER_ENDS, instance, end_s
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
    row, cluster = world.sessions[session], world.cluster[0]
    number = row.first_request + row.calls_begun
    if row.calls_begun > 0 and world.requests[number].kept_tokens == 0:
        row.epoch += 1
    row.calls_begun += 1
    world.requests[number].arrival_s = cluster.now_s
    call_arrives(world, number)
    place(world, number)


def place(world: World, number: int) -> None:
    request = world.requests[number]
    instance = pick_prefill(world, number)
    request.prefill_instance = instance
    request.uncached_tokens = request.prompt_tokens - held_tokens(world, number, instance)
    world.instances[instance].pending_prefill_tokens += request.uncached_tokens
    append(world, instance, WAITING, number)
    start_iteration(world, instance)


def on_iteration_end(world: World, instance: int) -> None:
    """Without one under way it is only time to look whether shadow work may run."""
    row = world.instances[instance]
    row.iteration_end_s = NEVER_S
    if row.iterations_started > row.iterations_ended:
        settle_iteration(world, instance)
        if row.first_push != NONE:
            start_push(world, instance)
    start_iteration(world, instance)
