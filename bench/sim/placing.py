"""Where a simulated call goes: the rules of `policy.placement`, over rows. Ties go to the lower
number there as here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.sim.kv_cache import held_tokens
from bench.sim.lists import length_of
from bench.sim.world import NONE, WAITING
from policy.placement import clearly_faster, prefill_completion_s

if TYPE_CHECKING:
    from bench.sim.world import World


def completion_s(world: World, request: int, instance: int) -> float:
    """When the instance would have computed this prompt, from now."""
    row, cluster = world.instances[instance], world.cluster[0]
    s_per_token = world.models[row.model].prefill_s_per_token
    queue_s = row.pending_prefill_tokens * s_per_token
    if row.iterations_started > row.iterations_ended:
        queue_s += row.iteration_end_s - cluster.now_s
    missing = world.requests[request].prompt_tokens - held_tokens(world, request, instance)
    return prefill_completion_s(queue_s, missing, s_per_token)


def pick_prefill(world: World, request: int) -> int:
    row = world.requests[request]
    model = world.models[row.model]
    best = model.first_prefill
    best_s = completion_s(world, request, best)
    for instance in range(best + 1, best + model.prefill_count):
        instance_s = completion_s(world, request, instance)
        if instance_s < best_s:
            best, best_s = instance, instance_s
    if row.session == NONE:
        return best
    sticky = world.sticky[row.session * world.cluster[0].models + row.model]
    if sticky.prefill_instance != NONE:
        sticky_s = completion_s(world, request, sticky.prefill_instance)
        if not clearly_faster(best_s, sticky_s, world.cluster[0].move_margin_share):
            return sticky.prefill_instance
    sticky.prefill_instance = best
    return best


def pick_decode(world: World, request: int) -> int:
    """The sticky instance if it has room, else the roomy one with the fewest requests, else the one
    with the fewest."""
    row = world.requests[request]
    model = world.models[row.model]
    needed = row.prompt_tokens + row.output_tokens
    best, best_roomy, best_load = NONE, False, 0
    for instance in range(model.first_decode, model.first_decode + model.decode_count):
        roomy = _free_after_queue(world, instance) >= needed
        load = _requests_at(world, instance)
        if best == NONE or (roomy and not best_roomy) or (roomy == best_roomy and load < best_load):
            best, best_roomy, best_load = instance, roomy, load
    if row.session == NONE:
        return best
    sticky = world.sticky[row.session * world.cluster[0].models + row.model]
    kept = sticky.decode_instance
    if kept != NONE and _free_after_queue(world, kept) >= needed:
        return kept
    sticky.decode_instance = best
    return best


def _free_after_queue(world: World, instance: int) -> int:
    """An instance whose queue already waits for room has none."""
    row = world.instances[instance]
    waiting = length_of(world, instance, WAITING)
    return 0 if waiting > 0 else row.free_tokens + row.cached_tokens


def _requests_at(world: World, instance: int) -> int:
    row = world.instances[instance]
    return row.decode_requests + row.transferring_requests + length_of(world, instance, WAITING)
