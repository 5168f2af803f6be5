"""Room for shadow work in a simulated KV pool: `policy.kv_class` decides, over tokens.

What shadow work is writing counts as used until it ends; then it is cached in the shadow class,
behind what the session had there. What a job reads is touched before anything makes room for it, so
that no prefix is displaced by its own continuation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.sim.kv_cache import evict, idle_tokens, limits_of, pool_of, session_entry
from bench.sim.kv_lists import touch
from bench.sim.rows import NORMAL_KV, SHADOW_KV
from policy.kv_class import cap_blocks, victims_for_shadow

if TYPE_CHECKING:
    from bench.sim.world import World
    from policy.kv_class import Victims


def cap_tokens(world: World, instance: int) -> int:
    share = limits_of(world, instance).kv_cap_share
    return cap_blocks(world.instances[instance].pool_tokens, share)


def room_for(world: World, session: int, instance: int, tokens: int) -> Victims:
    """Where up to `tokens` for a job of this session would come from."""
    limits, own = limits_of(world, instance), session_entry(world, session, instance)
    shadow = idle_tokens(world, instance, SHADOW_KV, own, tokens, limits)
    normal = idle_tokens(world, instance, NORMAL_KV, own, tokens, limits)
    return victims_for_shadow(tokens, pool_of(world, instance, shadow, normal), limits)


def write_shadow(world: World, session: int, instance: int, tokens: int) -> None:
    """Takes the room; `room_for` said that it is there."""
    victims = room_for(world, session, instance, tokens)
    assert victims.uncached + victims.shadow + victims.normal == tokens
    touch_entry(world, session_entry(world, session, instance))
    evict(world, instance, SHADOW_KV, victims.shadow)
    evict(world, instance, NORMAL_KV, victims.normal)
    row = world.instances[instance]
    row.free_tokens -= tokens
    row.used_tokens += tokens
    row.shadow_used_tokens += tokens


def end_write(world: World, session: int, instance: int, start: int, tokens: int) -> bool:
    """Whether what was written is of use: the session has not gone on here meanwhile."""
    row = world.instances[instance]
    row.used_tokens -= tokens
    row.shadow_used_tokens -= tokens
    number = session_entry(world, session, instance)
    entry = world.entries[number]
    joins_on = entry.tokens + entry.shadow_tokens == start
    if entry.is_used or entry.epoch != world.sessions[session].epoch or not joins_on:
        row.free_tokens += tokens
        return False
    entry.shadow_tokens += tokens
    row.shadow_tokens += tokens
    touch_entry(world, number)
    return True


def touch_entry(world: World, number: int) -> None:
    entry = world.entries[number]
    if entry.tokens > 0:
        touch(world, NORMAL_KV, number)
    if entry.shadow_tokens > 0:
        touch(world, SHADOW_KV, number)
