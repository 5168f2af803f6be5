"""The shadow jobs of a simulated instance: `policy.shadow_queue` over rows, as a linked list in the
order of service. Few wait at a time, and only an event of a session makes one walk it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.sim.rows import NONE

if TYPE_CHECKING:
    from bench.sim.world import World


def is_served_before(world: World, first: int, second: int) -> bool:
    one, other = world.jobs[first], world.jobs[second]
    if one.probability != other.probability:
        return one.probability > other.probability
    return one.since < other.since


def enqueue(world: World, job: int, instance: int) -> None:
    """A new segment begins at the end of the jobs that are as likely."""
    row, cluster = world.jobs[job], world.cluster[0]
    assert row.queued_on == NONE
    row.queued_on = instance
    row.queued_s = cluster.now_s
    row.since = _next_turn(world, instance)
    row.turn_tokens = 0
    row.is_started = 0
    world.instances[instance].queued_jobs += 1
    _place(world, job)
    _wake(world, instance)


def requeue(world: World, job: int) -> None:
    """A longer segment supersedes the one that waits, and keeps its turn; its probability may be
    another one now."""
    _displace(world, job)
    _place(world, job)
    _wake(world, world.jobs[job].queued_on)


def dequeue(world: World, job: int) -> None:
    """The segment is done, superseded by a call, or given up."""
    row = world.jobs[job]
    if row.queued_on == NONE:
        return
    _displace(world, job)
    world.instances[row.queued_on].queued_jobs -= 1
    row.queued_on = NONE


def served(world: World, job: int, tokens: int) -> None:
    row = world.jobs[job]
    row.turn_tokens += tokens
    row.is_started = 1
    if row.turn_tokens >= world.cluster[0].segment_tokens:
        _displace(world, job)
        row.since = _next_turn(world, row.queued_on)
        row.turn_tokens = 0
        _place(world, job)


def _wake(world: World, instance: int) -> None:
    """If it is idle, it looks now."""
    row = world.instances[instance]
    if row.iterations_started == row.iterations_ended:
        row.iteration_end_s = world.cluster[0].now_s


def _next_turn(world: World, instance: int) -> int:
    row = world.instances[instance]
    row.last_turn += 1
    return row.last_turn


def _place(world: World, job: int) -> None:
    row = world.jobs[job]
    instance = world.instances[row.queued_on]
    before, following = NONE, instance.first_job
    while following != NONE and is_served_before(world, following, job):
        before = following
        following = world.jobs[following].next_job
    row.next_job = following
    if before == NONE:
        instance.first_job = job
    else:
        world.jobs[before].next_job = job


def _displace(world: World, job: int) -> None:
    row = world.jobs[job]
    instance = world.instances[row.queued_on]
    if instance.first_job == job:
        instance.first_job = row.next_job
    else:
        before = instance.first_job
        while world.jobs[before].next_job != job:
            before = world.jobs[before].next_job
        world.jobs[before].next_job = row.next_job
    row.next_job = NONE
