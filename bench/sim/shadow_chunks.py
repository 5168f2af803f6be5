"""The shadow tokens of one iteration: how many, of which jobs.

`fill_budget` is for the controllers that have a budget, and for the instance that is there for
shadows; `take_earlier` is for `eager` and `take_whole` also for `request`, which look at none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.sim.costs import chunk_attention_s, shared_s
from bench.sim.host_tier import restore_end_s
from bench.sim.kv_cache import device_tokens, reached_tokens
from bench.sim.lists import length_of
from bench.sim.rows import CHUNKED, MAX_SHADOW_CHUNKS, NEVER_S, NONE, PREFILL, WAITING
from bench.sim.shadow_budget import PREDICTIVE, REFUSED_S, budget_s
from bench.sim.shadow_jobs import most_tokens, renew_unused, settle_restore, take_back
from bench.sim.shadow_kv import room_for, write_shadow
from policy.slack import PREDICTIVE_GATE

if TYPE_CHECKING:
    from bench.sim.world import World

LOOK_AGAIN_S = 0.25
"""How often an idle instance looks whether there is room for its shadow work by now."""


def fill_budget(
    world: World, instance: int, tokens: int, sequences: int, attention_s: float, base_s: float
) -> None:
    """After `policy.slack`: the jobs in their order, until one does not fit as a whole; and none if
    the first one's chunk is too small to be worth its cost."""
    row, cluster = world.instances[instance], world.cluster[0]
    longest_s = budget_s(world, instance, base_s)
    if longest_s == REFUSED_S:
        return
    number, is_first = row.first_job, True
    while number != NONE and has_place(world, instance) and tokens < cluster.max_batch_tokens:
        job, following = world.jobs[number], world.jobs[number].next_job
        if cluster.controller == PREDICTIVE and job.probability < PREDICTIVE_GATE:
            break
        if not is_ready(world, number, instance):
            number = following
            continue
        context = device_tokens(world, job.session, instance)
        missing = job.end_tokens - context
        limit = min(missing, cluster.max_batch_tokens - tokens)
        limit = _room(world, number, instance, limit)
        foreseen = 0 if cluster.predicts_tokens else context
        chunk = _largest(
            world, row.model, tokens, sequences, attention_s, foreseen, limit, longest_s
        )
        if is_first and _is_too_small(world, instance, chunk, limit, missing, base_s):
            break
        if chunk > 0:
            _take(world, number, instance, context, chunk)
            tokens += chunk
            sequences += 1
            attention_s += chunk_attention_s(world, row.model, chunk, foreseen)
        if chunk < missing:
            break
        number, is_first = following, False


def take_whole(world: World, number: int, instance: int, left: int) -> int:
    """As much of the job as the token budget and the room allow."""
    if left <= 0 or not has_place(world, instance) or not is_ready(world, number, instance):
        return 0
    job = world.jobs[number]
    context = device_tokens(world, job.session, instance)
    chunk = _room(world, number, instance, min(job.end_tokens - context, left))
    if chunk > 0:
        _take(world, number, instance, context, chunk)
    return chunk


def take_earlier(world: World, instance: int, left: int, before_s: float) -> int:
    """`eager`: all jobs that came before this time, as if they were requests. Returns what is left
    of the token budget."""
    number = world.instances[instance].first_job
    while number != NONE and left > 0:
        job, following = world.jobs[number], world.jobs[number].next_job
        if job.queued_s <= before_s and not _has_chunk(world, number, instance):
            left -= take_whole(world, number, instance, left)
        number = following
    return left


def started_job(world: World, instance: int) -> int:
    """`request` has one at a time."""
    number = world.instances[instance].first_job
    while number != NONE and not world.jobs[number].is_started:
        number = world.jobs[number].next_job
    return number


def has_place(world: World, instance: int) -> bool:
    row, cluster = world.instances[instance], world.cluster[0]
    sequences = row.decode_requests + length_of(world, instance, CHUNKED) + row.shadow_chunks
    return row.shadow_chunks < MAX_SHADOW_CHUNKS and sequences < cluster.max_sequences


def is_ready(world: World, number: int, instance: int) -> bool:
    """All that the chunk reads is on the instance. What lies on the host is fetched first, and a
    job that the cap cuts short leaves."""
    job = world.jobs[number]
    if job.restored_tokens > 0:
        if job.restore_end_s > world.cluster[0].now_s:
            return False
        settle_restore(world, number)
    renew_unused(world, job.session, instance)
    job.end_tokens = min(job.end_tokens, most_tokens(world, number, instance))
    reached = reached_tokens(world, job.session, instance)
    if job.end_tokens <= reached:
        take_back(world, number)
        return False
    device = device_tokens(world, job.session, instance)
    missing = reached - device
    if missing == 0:
        return True
    if _room(world, number, instance, missing) == missing:
        write_shadow(world, job.session, instance, missing)
        job.restored_tokens = missing
        job.restore_start = device
        job.restore_end_s = restore_end_s(world, instance, missing)
    return False


def look_again_s(world: World, instance: int) -> float:
    """When an idle instance with jobs tries again, if nothing else happens before."""
    row, cluster = world.instances[instance], world.cluster[0]
    if row.first_job == NONE or length_of(world, instance, WAITING) > 0:
        return NEVER_S
    again_s = NEVER_S
    number = row.first_job
    while number != NONE:
        job = world.jobs[number]
        if job.restored_tokens > 0 and job.restore_end_s > cluster.now_s:
            again_s = min(again_s, job.restore_end_s)
        else:
            again_s = min(again_s, cluster.now_s + LOOK_AGAIN_S)
        number = job.next_job
    return again_s


def _room(world: World, number: int, instance: int, tokens: int) -> int:
    victims = room_for(world, world.jobs[number].session, instance, tokens)
    return victims.uncached + victims.shadow + victims.normal


def _take(world: World, number: int, instance: int, context: int, chunk: int) -> None:
    row = world.instances[instance]
    write_shadow(world, world.jobs[number].session, instance, chunk)
    slot = world.chunks[instance * MAX_SHADOW_CHUNKS + row.shadow_chunks]
    slot.job = number
    slot.start = context
    slot.tokens = chunk
    row.shadow_chunks += 1


def _is_too_small(
    world: World, instance: int, chunk: int, limit: int, missing: int, base_s: float
) -> bool:
    """A chunk below the minimum waits for an iteration that can carry a larger one. One of an idle
    prefill instance has the whole cap already, so there is none (`SlackController`)."""
    minimum = min(world.cluster[0].n_min_tokens, missing)
    has_whole_cap = base_s == 0 and world.instances[instance].role == PREFILL
    return chunk < minimum and (limit < minimum or not has_whole_cap)


def _has_chunk(world: World, number: int, instance: int) -> bool:
    first = instance * MAX_SHADOW_CHUNKS
    for place in range(first, first + world.instances[instance].shadow_chunks):
        if world.chunks[place].job == number:
            return True
    return False


def _largest(
    world: World,
    model: int,
    tokens: int,
    sequences: int,
    attention_s: float,
    context: int,
    limit: int,
    longest_s: float,
) -> int:
    """Most tokens that keep the iteration within `longest_s`; more tokens never take less time."""
    low, high = 0, limit
    trial = limit
    while low < high:
        lasts_s = attention_s + chunk_attention_s(world, model, trial, context)
        lasts_s += shared_s(world, model, tokens + trial, sequences + 1)
        if lasts_s <= longest_s:
            low = trial
        else:
            high = trial - 1
        trial = (low + high + 1) // 2
    return low
