"""The KV pool of a simulated instance: reserved at admission, cached after use, evicted shadow
class first, each class oldest first (`policy.kv_class`, which counts blocks; here they are tokens).

An entry is a prefix, so eviction cuts its end and the rest stays useful, as in vLLM, where the last
blocks of a request are freed last and go first. Functions of rows; see `world`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bench.sim.host_tier import drop_host, host_end_tokens, spill
from bench.sim.kv_lists import oldest_of, touch, unlink, used_at_s, younger_than
from bench.sim.rows import DECODE, NONE, NORMAL_KV, SHADOW_KV
from policy.kv_class import KvPool, is_idle, victims_cold_first, victims_for_foreground

if TYPE_CHECKING:
    from bench.sim.world import World
    from policy.kv_class import Victims


class KvLimits(NamedTuple):
    kv_cap_share: float
    idle_age_s: float


def session_entry(world: World, session: int, instance: int) -> int:
    return session * world.cluster[0].instances + instance


def entry_of(world: World, request: int, instance: int) -> int:
    """A session has one entry on each instance; a request of normal traffic, whose prefix nobody
    asks for again, one on each instance that it visits (prefill, decode)."""
    cluster, row = world.cluster[0], world.requests[request]
    if row.session != NONE:
        return session_entry(world, row.session, instance)
    own = cluster.sessions * cluster.instances + request
    return own if row.prefill_instance == instance else own + cluster.requests


def device_tokens(world: World, session: int, instance: int) -> int:
    """Leading tokens of the session's history in the pool, unused at the moment."""
    entry = world.entries[session_entry(world, session, instance)]
    if entry.epoch != world.sessions[session].epoch:
        return 0
    return entry.tokens + entry.shadow_tokens


def reached_tokens(world: World, session: int, instance: int) -> int:
    """With those that its host holds behind them."""
    device = device_tokens(world, session, instance)
    return max(device, host_end_tokens(world, session, instance, device))


def held_tokens(world: World, request: int, instance: int) -> int:
    """How much of the request's prompt the instance can use. In whole blocks, and at least one
    token is computed: it gives the logits."""
    row, cluster = world.requests[request], world.cluster[0]
    if row.session == NONE or row.kept_tokens == 0:
        return 0
    held = reached_tokens(world, row.session, instance)
    if cluster.has_oracle and row.is_switch:
        held = row.kept_tokens
    held = min(held, row.kept_tokens, row.prompt_tokens - 1)
    return held - held % cluster.block_tokens


def has_room(world: World, instance: int, tokens: int) -> bool:
    """For this many tokens in all, those included that the request finds cached."""
    row = world.instances[instance]
    return row.free_tokens + row.cached_tokens + row.shadow_tokens >= tokens


def reserve(world: World, request: int, instance: int, tokens: int) -> int:
    """Takes `tokens` for the request and returns how many of them it had already. What it hits is
    of the normal class from now on."""
    row = world.instances[instance]
    session = world.requests[request].session
    number = entry_of(world, request, instance)
    held = held_tokens(world, request, instance)
    if session != NONE:
        renew(world, session, instance)
        if row.role != DECODE:
            world.requests[request].shadow_tokens += take_unused(world, number, held)
    clear(world, number)
    entry = world.entries[number]
    entry.instance = instance
    entry.is_used = 1
    victims = victims_for_request(world, instance, tokens)
    evict(world, instance, SHADOW_KV, victims.shadow)
    evict(world, instance, NORMAL_KV, victims.normal)
    row.free_tokens -= tokens
    row.used_tokens += tokens
    return held


def victims_for_request(world: World, instance: int, tokens: int) -> Victims:
    row, cluster = world.instances[instance], world.cluster[0]
    if not cluster.evicts_cold_first:
        return victims_for_foreground(tokens, pool_of(world, instance, 0, 0))
    missing, limits = tokens - row.free_tokens, limits_of(world, instance)
    idle = idle_tokens(world, instance, NORMAL_KV, NONE, missing, limits)
    return victims_cold_first(tokens, pool_of(world, instance, 0, idle))


def release(world: World, request: int, instance: int, reserved: int, kept: int) -> None:
    """Gives the reservation back; the first `kept` tokens of it stay cached."""
    row = world.instances[instance]
    number = entry_of(world, request, instance)
    entry = world.entries[number]
    if world.requests[request].session == NONE and not world.cluster[0].keeps_finished:
        kept = 0
    row.used_tokens -= reserved
    row.free_tokens += reserved - kept
    row.cached_tokens += kept
    entry.is_used = 0
    entry.tokens = kept
    if kept > 0:
        touch(world, NORMAL_KV, number)


def pool_of(world: World, instance: int, idle_shadow: int, idle_normal: int) -> KvPool:
    row = world.instances[instance]
    return KvPool(
        row.pool_tokens,
        row.shadow_tokens + row.shadow_used_tokens,
        row.free_tokens,
        row.shadow_tokens,
        idle_shadow,
        row.cached_tokens,
        idle_normal,
    )


def renew(world: World, session: int, instance: int) -> None:
    """What the entry has of a history that was compacted is of no use."""
    number = session_entry(world, session, instance)
    entry, epoch = world.entries[number], world.sessions[session].epoch
    entry.instance = instance
    if entry.epoch == epoch:
        return
    assert not entry.is_used
    clear(world, number)
    drop_host(world, number)
    entry.unused_start = 0
    entry.unused_end = 0
    entry.epoch = epoch


def take_unused(world: World, number: int, held: int) -> int:
    """A call found `held` tokens: how many of them no call has found before."""
    entry = world.entries[number]
    used = max(0, min(held, entry.unused_end) - entry.unused_start)
    entry.unused_start = 0
    entry.unused_end = 0
    if used > 0:
        world.instances[entry.instance].shadow_hit_tokens += used
    return used


def clear(world: World, number: int) -> None:
    """The entry's place in the pool is free; what its host holds stays."""
    entry = world.entries[number]
    if entry.tokens + entry.shadow_tokens == 0:
        return
    row = world.instances[entry.instance]
    row.cached_tokens -= entry.tokens
    row.shadow_tokens -= entry.shadow_tokens
    row.free_tokens += entry.tokens + entry.shadow_tokens
    entry.tokens = 0
    entry.shadow_tokens = 0
    unlink(world, NORMAL_KV, number)
    unlink(world, SHADOW_KV, number)


def limits_of(world: World, instance: int) -> KvLimits:
    """An instance that is there for shadows gives them all of its pool, at any age."""
    cluster = world.cluster[0]
    if world.models[world.instances[instance].model].dedicated_instance == instance:
        return KvLimits(1.0, 0.0)
    return KvLimits(cluster.kv_cap_share, cluster.idle_age_s)


def idle_tokens(
    world: World, instance: int, kind: int, own: int, enough: int, limits: KvLimits
) -> int:
    """In entries other than `own` that are old enough; counted no further than it matters."""
    now_s, total = world.cluster[0].now_s, 0
    number = oldest_of(world, instance, kind)
    while number != NONE and total < enough:
        if not is_idle(now_s - used_at_s(world, kind, number), limits):
            break
        if number != own:
            entry = world.entries[number]
            total += entry.shadow_tokens if kind == SHADOW_KV else entry.tokens
        number = younger_than(world, kind, number)
    return total


def evict(world: World, instance: int, kind: int, tokens: int) -> None:
    """The least recently used entries first."""
    row = world.instances[instance]
    missing = tokens
    while missing > 0:
        number = oldest_of(world, instance, kind)
        assert number != NONE
        entry = world.entries[number]
        if entry.shadow_tokens > 0:
            # Also of one of the normal class: as old as what it joins on to, and of no use without.
            cut = min(missing, entry.shadow_tokens)
            entry.shadow_tokens -= cut
            row.shadow_tokens -= cut
            if entry.shadow_tokens == 0:
                unlink(world, SHADOW_KV, number)
        else:
            cut = min(missing, entry.tokens)
            entry.tokens -= cut
            row.cached_tokens -= cut
            if entry.tokens == 0:
                unlink(world, NORMAL_KV, number)
        row.free_tokens += cut
        row.evicted_tokens += cut
        missing -= cut
        spill(world, number, entry.tokens + entry.shadow_tokens, cut)
