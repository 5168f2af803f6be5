"""KV of sessions that was evicted and lies in the memory of the instance's host.

What is on the instance may be there as well: a tail that is evicted again after it came back needs
no second copy. Each direction of PCIe carries one transfer after the other. Instances that only
decode have no tier: the prefill instance has the whole prompt anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.sim.kv_lists import oldest_of, touch, unlink
from bench.sim.rows import DECODE, HOST_KV

if TYPE_CHECKING:
    from bench.sim.world import World


def host_end_tokens(world: World, session: int, instance: int, device_tokens: int) -> int:
    """Up to where the history reaches with what the host holds; 0 if that does not join on."""
    cluster = world.cluster[0]
    if not cluster.has_host_tier:
        return 0
    entry = world.entries[session * cluster.instances + instance]
    if entry.epoch != world.sessions[session].epoch or entry.host_tokens == 0:
        return 0
    if entry.host_start > device_tokens or entry.host_ready_s > cluster.now_s:
        return 0
    return entry.host_start + entry.host_tokens


def restore_end_s(world: World, instance: int, tokens: int) -> float:
    """When so many tokens have come back, if they start as soon as the link is free."""
    row = world.instances[instance]
    duration_s = tokens * world.models[row.model].host_s_per_token
    row.host_in_free_s = max(row.host_in_free_s, world.cluster[0].now_s) + duration_s
    row.restored_tokens += tokens
    return row.host_in_free_s


def spill(world: World, number: int, start: int, tokens: int) -> None:
    """Tokens `start` and following leave the instance. Their place is free at once, as if the copy
    were made while they lay idle; a tail that does not join on to what is there replaces it."""
    cluster, entry = world.cluster[0], world.entries[number]
    row = world.instances[entry.instance]
    is_session = number < cluster.sessions * cluster.instances
    if not cluster.has_host_tier or not is_session or row.role == DECODE:
        return
    if entry.epoch != world.sessions[number // cluster.instances].epoch:
        return
    end = start + tokens
    if start > entry.host_start + entry.host_tokens or end < entry.host_start:
        drop_host(world, number)
    if entry.host_tokens == 0:
        entry.host_start = start
    first = min(start, entry.host_start)
    last = max(end, entry.host_start + entry.host_tokens)
    added = last - first - entry.host_tokens
    entry.host_start = first
    entry.host_tokens = last - first
    row.host_used_tokens += added
    if added > 0:
        duration_s = added * world.models[row.model].host_s_per_token
        row.host_out_free_s = max(row.host_out_free_s, cluster.now_s) + duration_s
        entry.host_ready_s = row.host_out_free_s
        row.spilled_tokens += added
    touch(world, HOST_KV, number)
    _make_room(world, entry.instance)


def drop_host(world: World, number: int) -> None:
    entry = world.entries[number]
    if entry.host_tokens == 0:
        return
    world.instances[entry.instance].host_used_tokens -= entry.host_tokens
    entry.host_tokens = 0
    unlink(world, HOST_KV, number)


def _make_room(world: World, instance: int) -> None:
    """The oldest go first, each from its end."""
    row = world.instances[instance]
    excess = row.host_used_tokens - world.models[row.model].host_pool_tokens
    while excess > 0:
        number = oldest_of(world, instance, HOST_KV)
        entry = world.entries[number]
        cut = min(excess, entry.host_tokens)
        entry.host_tokens -= cut
        row.host_used_tokens -= cut
        excess -= cut
        if entry.host_tokens == 0:
            unlink(world, HOST_KV, number)
