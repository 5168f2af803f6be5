"""How likely each model serves a session's next call, and which of them get a shadow:
`policy.switching` over counts in an array."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.sim.rows import NONE
from policy.switching import SMOOTHING_CALLS, smoothed_share

if TYPE_CHECKING:
    from bench.sim.world import World


def observe_next(world: World, kind: int, current: int, following: int) -> None:
    cluster = world.cluster[0]
    of_kind = (kind * cluster.models + current) * cluster.models + following
    of_all = (cluster.kinds * cluster.models + current) * cluster.models + following
    world.next_counts[of_kind] += 1
    world.next_counts[of_all] += 1


def share_of(world: World, kind: int, current: int, following: int) -> float:
    """From what past sessions did, of this kind and of all kinds."""
    models = world.cluster[0].models
    general = _smoothed(world, world.cluster[0].kinds, current, following, 1 / models)
    return _smoothed(world, kind, current, following, general)


def choose_targets(world: World, request: int) -> None:
    """When a call arrives, for all models but its own; equal ones go to the lower number."""
    cluster, row = world.cluster[0], world.requests[request]
    first = row.session * cluster.models
    told = (request - cluster.normal_requests) * cluster.models
    for model in range(cluster.models):
        job = world.jobs[first + model]
        job.probability = world.told[told + model]
        if job.probability == NONE:
            kind = world.sessions[row.session].kind
            job.probability = share_of(world, kind, row.model, model)
    for model in range(cluster.models):
        job, likelier = world.jobs[first + model], 0
        for other in range(cluster.models):
            probability = world.jobs[first + other].probability
            ahead = probability == job.probability and other < model
            if other != row.model and (probability > job.probability or ahead):
                likelier += 1
        is_likely = job.probability >= cluster.min_probability and job.probability > 0
        job.is_target = int(model != row.model and is_likely and likelier < cluster.top_k)


def _smoothed(world: World, kind: int, current: int, following: int, prior: float) -> float:
    models = world.cluster[0].models
    first = (kind * models + current) * models
    total = 0.0
    for model in range(models):
        total += world.next_counts[first + model]
    count = world.next_counts[first + following]
    return smoothed_share(count, total, prior, SMOOTHING_CALLS)
