"""Shadow KV on its way to a decode instance: one push at a time, only while nothing else uses the
link into it (`policy.link_gate`), into memory that is reclaimed first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.sim.kv_cache import device_tokens, session_entry
from bench.sim.lists import first_of, length_of
from bench.sim.placing import pick_decode
from bench.sim.rows import NEVER_S, NONE, PREFILL, TRANSFERRING, WAITING
from bench.sim.shadow_jobs import renew_unused
from bench.sim.shadow_kv import cap_tokens, end_write, room_for, write_shadow
from policy.link_gate import push_tokens_now

if TYPE_CHECKING:
    from bench.sim.world import World


def want_push(world: World, number: int, source: int) -> None:
    """A segment of this job is done on a prefill instance."""
    job = world.jobs[number]
    if world.instances[source].role != PREFILL or job.pushed_to != NONE:
        return
    instance = pick_decode(world, job.session, job.model, job.stable_tokens)
    row = world.instances[instance]
    job.pushed_to = instance
    job.pushed_from = source
    job.next_push = NONE
    if row.first_push == NONE:
        row.first_push = number
    else:
        world.jobs[row.last_push].next_push = number
    row.last_push = number
    start_push(world, instance)


def start_push(world: World, instance: int) -> None:
    row, cluster = world.instances[instance], world.cluster[0]
    busy = row.transferring_requests + length_of(world, instance, WAITING)
    busy += int(row.push_job != NONE)
    while row.first_push != NONE and busy == 0:
        number = row.first_push
        job = world.jobs[number]
        missing, room = _missing_and_room(world, number, instance)
        tokens = push_tokens_now(busy, missing, room, cluster.segment_tokens, cluster.block_tokens)
        if tokens > 0:
            row.push_start = device_tokens(world, job.session, instance)
            write_shadow(world, job.session, instance, tokens)
            row.push_job = number
            row.push_tokens = tokens
            seconds = tokens * world.models[job.model].transfer_s_per_token
            row.link_free_s = max(row.link_free_s, cluster.now_s) + seconds
            row.transfer_end_s = row.link_free_s
            return
        if missing > 0:
            return
        row.first_push = job.next_push
        job.pushed_to = NONE


def end_push(world: World, instance: int) -> None:
    row = world.instances[instance]
    job = world.jobs[row.push_job]
    if end_write(world, job.session, instance, row.push_start, row.push_tokens):
        row.pushed_tokens += row.push_tokens
    row.push_job = NONE
    following = first_of(world, instance, TRANSFERRING)
    row.transfer_end_s = NEVER_S if following == NONE else world.requests[following].transfer_end_s
    start_push(world, instance)


def _missing_and_room(world: World, number: int, instance: int) -> tuple[int, int]:
    """What may ever come is missing: not what the cap cuts off, nor what a call brings itself."""
    cluster, job = world.cluster[0], world.jobs[number]
    entry = world.entries[session_entry(world, job.session, instance)]
    if entry.is_used:
        return 0, 0
    renew_unused(world, job.session, instance)
    there = min(device_tokens(world, job.session, job.pushed_from), job.stable_tokens)
    most = min(there, entry.tokens + cap_tokens(world, instance))
    missing = most - device_tokens(world, job.session, instance)
    if missing < cluster.block_tokens:
        return 0, 0
    victims = room_for(world, job.session, instance, min(missing, cluster.segment_tokens))
    return missing, victims.uncached + victims.shadow + victims.normal
