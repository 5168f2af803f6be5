"""How long an iteration with shadow tokens may last: the controllers of `policy.slack`, whose
numeric cores are compiled as they are. What the engines predict is exact here.

The order of the refusals and of the bounds is `SlackController`'s, and a test holds the two against
each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.sim.lists import first_of, length_of
from bench.sim.rows import CHUNKED, NEVER_S, NONE, PREFILL, WAITING
from policy.slack import cap_s, credit_after_s, decode_due_s, prefill_slack_s
from policy.vocabulary import Controller

if TYPE_CHECKING:
    from bench.sim.world import World

CONTROLLERS = tuple(Controller)
"""Their numbers in `ClusterRow.controller`."""
OFF, HARVEST, HARVEST_SLO, PREDICTIVE, EAGER, REQUEST = (
    CONTROLLERS.index(Controller(name))
    for name in ("off", "harvest", "harvest-slo", "predictive", "eager", "request")
)
REFUSED_S = -1.0


def budget_s(world: World, instance: int, base_s: float) -> float:
    """Longest that the iteration being built may last if it takes shadow tokens; `base_s` is what
    it lasts without."""
    row, cluster = world.instances[instance], world.cluster[0]
    is_busy = base_s > 0
    if world.models[row.model].dedicated_instance == instance:
        return REFUSED_S if is_busy else NEVER_S
    if length_of(world, instance, WAITING) > 0 or row.admission_blocked:
        return REFUSED_S
    is_routed = carries_routed(world, instance)
    if row.role == PREFILL and is_routed:
        return REFUSED_S
    whole_s = _cap_s(world, instance, is_busy)
    if cluster.controller == HARVEST_SLO:
        whole_s = min(whole_s, least_slack_s(world, instance))
    if is_routed or (is_busy and cluster.controller != HARVEST_SLO):
        protected_s = max(0.0, row.credit_s)
        if not cluster.credit_is_total:
            protected_s += base_s
        whole_s = min(whole_s, protected_s)
    return whole_s


def carries_routed(world: World, instance: int) -> bool:
    if world.instances[instance].routed_decodes > 0:
        return True
    number = first_of(world, instance, CHUNKED)
    while number != NONE:
        if world.requests[number].session != NONE:
            return True
        number = world.requests[number].next_in_list
    return False


def least_slack_s(world: World, instance: int) -> float:
    """Of the normal requests in flight."""
    row, cluster = world.instances[instance], world.cluster[0]
    model = world.models[row.model]
    slack_s = NEVER_S
    if row.least_due_s < NEVER_S:
        due_s = decode_due_s(
            cluster.margin, model.tpot_slo_s, row.iterations_ended, row.least_due_s
        )
        slack_s = due_s - cluster.now_s
    number = first_of(world, instance, CHUNKED)
    while number != NONE:
        request = world.requests[number]
        if request.session == NONE:
            left = request.prompt_tokens - request.computed_tokens - request.chunk_tokens
            left_s = left * model.prefill_s_per_token
            own_s = prefill_slack_s(
                cluster.margin, request.ttft_slo_s, cluster.now_s, request.arrival_s, left_s
            )
            slack_s = min(slack_s, own_s)
        number = request.next_in_list
    return slack_s


def settle_credit(world: World, instance: int) -> None:
    """After an iteration. One of shadow work alone delayed nobody."""
    row, cluster = world.instances[instance], world.cluster[0]
    if not row.iteration_is_busy:
        return
    protects = row.iteration_is_routed or cluster.controller != HARVEST_SLO
    earns = row.iteration_is_decode_only and row.iteration_shadow_s <= 0 and row.role != PREFILL
    earned_s, spent_s = 0.0, 0.0
    if earns and (protects or cluster.accrues_always):
        earned_s = cluster.delta * (cluster.now_s - row.iteration_start_s)
    if protects:
        spent_s = max(0.0, row.iteration_shadow_s)
    limit_s = _cap_s(world, instance, True)
    row.credit_s = credit_after_s(row.credit_s, earned_s, spent_s, limit_s)


def _cap_s(world: World, instance: int, is_busy: bool) -> float:
    row, cluster = world.instances[instance], world.cluster[0]
    is_prefill = row.role == PREFILL
    fixed_s = cluster.iteration_cap_s if is_prefill else 0.0
    tpot_s = world.models[row.model].tpot_slo_s
    return cap_s(cluster.beta, tpot_s, fixed_s, is_prefill, not is_busy)
