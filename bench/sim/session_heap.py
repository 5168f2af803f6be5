"""Sessions that wait for their next call, earliest first; ties go to the lower number. A binary
heap in an array, because compiled code has no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.sim.world import World


def is_earlier(world: World, first: int, second: int) -> bool:
    first_s, second_s = world.sessions[first].next_call_s, world.sessions[second].next_call_s
    return first_s < second_s or (first_s == second_s and first < second)


def push_session(world: World, session: int, next_call_s: float) -> None:
    heap, cluster = world.heap, world.cluster[0]
    world.sessions[session].next_call_s = next_call_s
    place = cluster.waiting_sessions
    cluster.waiting_sessions += 1
    heap[place] = session
    while place > 0:
        parent = (place - 1) // 2
        if not is_earlier(world, heap[place], heap[parent]):
            break
        heap[place], heap[parent] = heap[parent], heap[place]
        place = parent


def pop_session(world: World) -> int:
    heap, cluster = world.heap, world.cluster[0]
    first = heap[0]
    cluster.waiting_sessions -= 1
    heap[0] = heap[cluster.waiting_sessions]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= cluster.waiting_sessions:
            break
        if child + 1 < cluster.waiting_sessions and is_earlier(world, heap[child + 1], heap[child]):
            child += 1
        if not is_earlier(world, heap[child], heap[place]):
            break
        heap[place], heap[child] = heap[child], heap[place]
        place = child
    return int(first)
