"""The KV pool of a simulated instance: reserved at admission, cached after use, evicted oldest
first.

An entry is a prefix, so eviction cuts its end and the rest stays useful, as in vLLM, where the last
blocks of a request are freed last and go first. Functions of rows; see `world`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.sim.world import NONE

if TYPE_CHECKING:
    from bench.sim.world import World


def entry_of(world: World, request: int, instance: int) -> int:
    """A session has one entry on each instance; a request of normal traffic, whose prefix nobody
    asks for again, one on each instance that it visits (prefill, decode)."""
    cluster, row = world.cluster[0], world.requests[request]
    if row.session != NONE:
        return row.session * cluster.instances + instance
    own = cluster.sessions * cluster.instances + request
    return own if row.prefill_instance == instance else own + cluster.requests


def held_tokens(world: World, request: int, instance: int) -> int:
    """How much of the request's prompt the instance holds. In whole blocks, and at least one token
    is computed: it gives the logits."""
    row = world.requests[request]
    if row.session == NONE or row.kept_tokens == 0:
        return 0
    entry = world.entries[row.session * world.cluster[0].instances + instance]
    if entry.epoch != world.sessions[row.session].epoch:
        return 0
    held = min(entry.tokens, row.kept_tokens, row.prompt_tokens - 1)
    return held - held % world.cluster[0].block_tokens


def has_room(world: World, instance: int, tokens: int) -> bool:
    """For this many tokens in all, those included that the request finds cached."""
    row = world.instances[instance]
    return row.free_tokens + row.cached_tokens >= tokens


def reserve(world: World, request: int, instance: int, tokens: int) -> int:
    """Takes `tokens` for the request and returns how many of them were held already."""
    row = world.instances[instance]
    number = entry_of(world, request, instance)
    entry = world.entries[number]
    held = held_tokens(world, request, instance)
    if entry.linked:
        _unlink(world, number)
        row.cached_tokens -= entry.tokens
        row.free_tokens += entry.tokens
    entry.instance = instance
    entry.tokens = 0
    if row.free_tokens < tokens:
        _evict(world, instance, tokens - row.free_tokens)
    row.free_tokens -= tokens
    row.used_tokens += tokens
    return held


def release(world: World, request: int, instance: int, reserved: int, kept: int) -> None:
    """Gives the reservation back; the first `kept` tokens of it stay cached."""
    row = world.instances[instance]
    number = entry_of(world, request, instance)
    entry = world.entries[number]
    session = world.requests[request].session
    row.used_tokens -= reserved
    row.free_tokens += reserved - kept
    row.cached_tokens += kept
    entry.tokens = kept
    entry.epoch = 0 if session == NONE else world.sessions[session].epoch
    if kept > 0:
        _append(world, number)


def _evict(world: World, instance: int, tokens: int) -> None:
    row = world.instances[instance]
    missing = tokens
    while missing > 0:
        number = row.lru_first
        assert number != NONE
        entry = world.entries[number]
        cut = min(missing, entry.tokens)
        entry.tokens -= cut
        row.cached_tokens -= cut
        row.free_tokens += cut
        row.evicted_tokens += cut
        missing -= cut
        if entry.tokens == 0:
            _unlink(world, number)


def _append(world: World, number: int) -> None:
    entry = world.entries[number]
    row = world.instances[entry.instance]
    entry.before = row.lru_last
    entry.after = NONE
    entry.linked = 1
    if row.lru_last == NONE:
        row.lru_first = number
    else:
        world.entries[row.lru_last].after = number
    row.lru_last = number


def _unlink(world: World, number: int) -> None:
    entry = world.entries[number]
    row = world.instances[entry.instance]
    if entry.before == NONE:
        row.lru_first = entry.after
    else:
        world.entries[entry.before].after = entry.after
    if entry.after == NONE:
        row.lru_last = entry.before
    else:
        world.entries[entry.after].before = entry.before
    entry.before = NONE
    entry.after = NONE
    entry.linked = 0
