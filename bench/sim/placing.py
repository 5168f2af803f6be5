"""Where a simulated call goes: the rules of `policy.placement`, over rows. Ties go to the lower
number there as here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.sim.kv_cache import device_tokens, held_tokens
from bench.sim.lists import length_of
from bench.sim.rows import NONE, WAITING
from policy.placement import clearly_faster, prefill_completion_s

if TYPE_CHECKING:
    from bench.sim.world import World


def completion_s(world: World, request: int, instance: int) -> float:
    """When the instance would have computed this prompt, from now."""
    row, cluster = world.requests[request], world.cluster[0]
    model = world.models[row.model]
    held, fetch_s = held_tokens(world, request, instance), 0.0
    if row.session != NONE:
        if cluster.has_host_tier:
            device = device_tokens(world, row.session, instance)
            fetch_s = max(0, held - device) * model.host_s_per_token
        if cluster.kv_moves:
            there = device_tokens(world, row.session, model.dedicated_instance)
            moved = max(0, min(there, row.kept_tokens) - held)
            held += moved
            fetch_s += moved * model.transfer_s_per_token
    waits_s, missing = queue_s(world, instance) + fetch_s, row.prompt_tokens - held
    return prefill_completion_s(waits_s, missing, model.prefill_s_per_token)


def queue_s(world: World, instance: int) -> float:
    """Of what was placed there before."""
    row = world.instances[instance]
    waits_s = row.pending_prefill_tokens * world.models[row.model].prefill_s_per_token
    if row.iterations_started > row.iterations_ended:
        waits_s += row.iteration_end_s - world.cluster[0].now_s
    return waits_s


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
    if model.dedicated_instance != NONE and not world.cluster[0].kv_moves:
        instance_s = completion_s(world, request, model.dedicated_instance)
        if instance_s < best_s:
            best, best_s = model.dedicated_instance, instance_s
    sticky = world.sticky[row.session * world.cluster[0].models + row.model]
    if sticky.prefill_instance != NONE:
        sticky_s = completion_s(world, request, sticky.prefill_instance)
        if not clearly_faster(best_s, sticky_s, world.cluster[0].move_margin_share):
            return sticky.prefill_instance
    sticky.prefill_instance = best
    return best


def place_shadow(world: World, session: int, model: int) -> int:
    """Where the session's calls of this model go; the least busy instance if there was none."""
    row = world.models[model]
    if row.dedicated_instance != NONE:
        return row.dedicated_instance
    sticky = world.sticky[session * world.cluster[0].models + model]
    if sticky.prefill_instance == NONE:
        best = row.first_prefill
        for instance in range(best + 1, best + row.prefill_count):
            if queue_s(world, instance) < queue_s(world, best):
                best = instance
        sticky.prefill_instance = best
    return sticky.prefill_instance


def pick_decode(world: World, session: int, model: int, needed: int) -> int:
    """The sticky instance if it has room, else the roomy one with the fewest requests, else the one
    with the fewest."""
    row = world.models[model]
    best, best_roomy, best_load = NONE, False, 0
    for instance in range(row.first_decode, row.first_decode + row.decode_count):
        roomy = _free_after_queue(world, instance) >= needed
        load = _requests_at(world, instance)
        if best == NONE or (roomy and not best_roomy) or (roomy == best_roomy and load < best_load):
            best, best_roomy, best_load = instance, roomy, load
    if session == NONE:
        return best
    sticky = world.sticky[session * world.cluster[0].models + model]
    kept = sticky.decode_instance
    if kept != NONE and _free_after_queue(world, kept) >= needed:
        return kept
    sticky.decode_instance = best
    return best


def _free_after_queue(world: World, instance: int) -> int:
    """An instance whose queue already waits for room has none."""
    row = world.instances[instance]
    waiting = length_of(world, instance, WAITING)
    return 0 if waiting > 0 else row.free_tokens + row.cached_tokens + row.shadow_tokens


def _requests_at(world: World, instance: int) -> int:
    row = world.instances[instance]
    return row.decode_requests + row.transferring_requests + length_of(world, instance, WAITING)
