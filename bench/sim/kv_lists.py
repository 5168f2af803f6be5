"""The KV lists of each instance (`rows.NORMAL_KV` and following), least recently used first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.sim.rows import KV_LISTS, NONE

if TYPE_CHECKING:
    from bench.sim.world import World


def oldest_of(world: World, instance: int, kind: int) -> int:
    return world.kv_lists[instance * KV_LISTS + kind].first


def younger_than(world: World, kind: int, number: int) -> int:
    return world.links[kind * world.cluster[0].entries + number].after


def used_at_s(world: World, kind: int, number: int) -> float:
    return world.links[kind * world.cluster[0].entries + number].used_s


def touch(world: World, kind: int, number: int) -> None:
    """The entry was used now; it joins the list if it is not in it."""
    cluster = world.cluster[0]
    first = kind * cluster.entries
    link = world.links[first + number]
    row = world.kv_lists[world.entries[number].instance * KV_LISTS + kind]
    if link.is_linked:
        unlink(world, kind, number)
    link.before = row.last
    link.after = NONE
    link.is_linked = 1
    link.used_s = cluster.now_s
    if row.last == NONE:
        row.first = number
    else:
        world.links[first + row.last].after = number
    row.last = number


def unlink(world: World, kind: int, number: int) -> None:
    first = kind * world.cluster[0].entries
    link = world.links[first + number]
    if not link.is_linked:
        return
    row = world.kv_lists[world.entries[number].instance * KV_LISTS + kind]
    if link.before == NONE:
        row.first = link.after
    else:
        world.links[first + link.before].after = link.after
    if link.after == NONE:
        row.last = link.before
    else:
        world.links[first + link.after].before = link.before
    link.before = NONE
    link.after = NONE
    link.is_linked = 0
