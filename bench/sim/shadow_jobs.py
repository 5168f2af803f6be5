"""The shadow jobs of a simulated session: created and extended when a call arrives, while its
output grows and when it ends; taken back when a call reaches their model.

A job runs as segments, one queued at a time. It covers what the session's next prompt will start
with, whole blocks only, and no more than the shadow class may hold of one job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.sim.kv_cache import reached_tokens, renew, session_entry
from bench.sim.next_models import choose_targets, observe_next
from bench.sim.placing import place_shadow
from bench.sim.rows import NONE
from bench.sim.shadow_kv import cap_tokens, end_write
from bench.sim.shadow_queue import dequeue, enqueue, requeue, served
from policy.segments import aligned

if TYPE_CHECKING:
    from bench.sim.world import World


def call_arrives(world: World, request: int) -> None:
    """A switch never waits for its shadow; the new input joins the other models' jobs at once."""
    cluster, row = world.cluster[0], world.requests[request]
    session = world.sessions[row.session]
    if cluster.has_shadows:
        if session.model != NONE:
            observe_next(world, session.kind, session.model, row.model)
        first = row.session * cluster.models
        take_back(world, first + row.model)
        if row.kept_tokens == 0:
            for model in range(cluster.models):
                take_back(world, first + model)
        choose_targets(world, request)
        extend_jobs(world, row.session, row.prompt_tokens)
    session.model = row.model


def extend_jobs(world: World, session: int, stable_tokens: int) -> None:
    cluster = world.cluster[0]
    first = session * cluster.models
    for number in range(first, first + cluster.models):
        job = world.jobs[number]
        if not job.is_target:
            continue
        job.stable_tokens = stable_tokens
        if job.queued_on == NONE:
            submit(world, number)
            continue
        end = segment_end(world, number, job.queued_on)
        if end == 0:
            take_back(world, number)
        else:
            job.end_tokens = end
            requeue(world, number)


def submit(world: World, number: int) -> None:
    """The next segment, if the history is longer than what the target reaches."""
    job = world.jobs[number]
    instance = place_shadow(world, job.session, job.model)
    renew_unused(world, job.session, instance)
    end = segment_end(world, number, instance)
    if end > 0:
        job.end_tokens = end
        enqueue(world, number, instance)


def segment_end(world: World, number: int, instance: int) -> int:
    """0 if there is nothing to do."""
    cluster, job = world.cluster[0], world.jobs[number]
    start = aligned(reached_tokens(world, job.session, instance), cluster.block_tokens)
    step = aligned(cluster.segment_tokens, cluster.block_tokens)
    end = min(most_tokens(world, number, instance), start + step)
    return end if end > start else 0


def most_tokens(world: World, number: int, instance: int) -> int:
    """Up to where the job may cover: beyond what the session's own calls left there, no more than
    the shadow class may hold."""
    cluster, job = world.cluster[0], world.jobs[number]
    entry = world.entries[session_entry(world, job.session, instance)]
    own = entry.tokens if entry.epoch == world.sessions[job.session].epoch else 0
    most = min(job.stable_tokens, own + cap_tokens(world, instance))
    return aligned(most, cluster.block_tokens)


def take_back(world: World, number: int) -> None:
    """Out of the queue. A chunk under way is computed to its end."""
    job = world.jobs[number]
    if job.queued_on == NONE:
        return
    settle_restore(world, number)
    dequeue(world, number)


def settle_restore(world: World, number: int) -> None:
    """What comes from the host is there, or is not waited for any more."""
    job = world.jobs[number]
    if job.restored_tokens == 0:
        return
    is_there = job.restore_end_s <= world.cluster[0].now_s
    start = job.restore_start if is_there else NONE
    end_write(world, job.session, job.queued_on, start, job.restored_tokens)
    job.restored_tokens = 0


def end_chunk(world: World, place: int, instance: int) -> bool:
    """Whether a segment is done with it; the next one is queued then."""
    chunk, row = world.chunks[place], world.instances[instance]
    number, start, tokens = chunk.job, chunk.start, chunk.tokens
    job = world.jobs[number]
    row.shadow_computed_tokens += tokens
    if end_write(world, job.session, instance, start, tokens):
        _note_unused(world, session_entry(world, job.session, instance), start, start + tokens)
    if job.queued_on != instance:
        return False
    served(world, number, tokens)
    if reached_tokens(world, job.session, instance) < job.end_tokens:
        return False
    dequeue(world, number)
    submit(world, number)
    return True


def renew_unused(world: World, session: int, instance: int) -> None:
    """A running call has an entry of its own time."""
    if not world.entries[session_entry(world, session, instance)].is_used:
        renew(world, session, instance)


def _note_unused(world: World, number: int, start: int, end: int) -> None:
    entry = world.entries[number]
    if entry.unused_end <= entry.unused_start:
        entry.unused_start = start
        entry.unused_end = end
    else:
        entry.unused_start = min(entry.unused_start, start)
        entry.unused_end = max(entry.unused_end, end)
