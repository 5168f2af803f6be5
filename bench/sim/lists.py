"""The three queues of each instance (`rows.WAITING` and following), first in, first out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.sim.rows import LISTS, NONE

if TYPE_CHECKING:
    from bench.sim.world import World


def first_of(world: World, instance: int, kind: int) -> int:
    return world.lists[instance * LISTS + kind].first


def length_of(world: World, instance: int, kind: int) -> int:
    return world.lists[instance * LISTS + kind].length


def append(world: World, instance: int, kind: int, request: int) -> None:
    row = world.lists[instance * LISTS + kind]
    world.requests[request].next_in_list = NONE
    if row.last == NONE:
        row.first = request
    else:
        world.requests[row.last].next_in_list = request
    row.last = request
    row.length += 1


def pop_first(world: World, instance: int, kind: int) -> int:
    row = world.lists[instance * LISTS + kind]
    request = row.first
    row.first = world.requests[request].next_in_list
    if row.first == NONE:
        row.last = NONE
    row.length -= 1
    return request
