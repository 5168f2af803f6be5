"""The simulator decides as the classes of `policy` do that the engines and the coordinator host."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.sim import pushes, shadow_budget, shadow_jobs, shadow_kv
from bench.sim.approach import Approach
from bench.sim.build import RoutedWork, Workload, build_world
from bench.sim.cluster import Cluster, ModelPool
from bench.sim.costs import chunk_attention_s, decode_attention_s, shared_s
from bench.sim.next_models import choose_targets, observe_next, share_of
from bench.sim.rows import COLOCATED, NEVER_S, NONE, PREFILL, WAITING
from bench.sim.shadow_chunks import fill_budget
from bench.sim.shadow_queue import dequeue, enqueue, requeue, served
from bench.sim.world import as_rows
from policy import kv_class, link_gate, segments, slack
from policy.segments import segment_ends
from policy.shadow_queue import ShadowJob, ShadowQueue
from policy.slack import JobLoad, SlackController, SlackParams, StepLoad, decode_due_s
from policy.step_time import Batch
from policy.switching import SwitchPrior, rank_targets
from policy.vocabulary import Controller, Role, Slo
from tests.bench.sim.builders import GEMMA, a_session

if TYPE_CHECKING:
    from bench.sim.world import World

SESSIONS, TURN = 4, 100
BUDGETED = (Controller.HARVEST, Controller.HARVEST_SLO, Controller.PREDICTIVE)


@cache
def _records(approach: Approach, models: int, role: int) -> World:
    counts = {"colocated": 1} if role == COLOCATED else {"prefill": 1, "decode": 1}
    pools = tuple(ModelPool(latency=GEMMA, **counts) for _ in range(models))
    work = [RoutedWork(a_session((0, 9000, 5, 0.0)), (0,))] * SESSIONS
    return build_world(Cluster(pools=pools), Workload(sessions=tuple(work)), approach)


def a_world(approach: Approach, *, models: int = 2, role: int = COLOCATED) -> World:
    """Sessions that began on model 0; one instance per model, the first of each pool if split."""
    return as_rows(_records(approach, models, role))


def test_the_numbers_come_from_the_policies_themselves() -> None:
    assert shadow_budget.decode_due_s is slack.decode_due_s
    assert shadow_budget.prefill_slack_s is slack.prefill_slack_s
    assert shadow_budget.cap_s is slack.cap_s
    assert shadow_budget.credit_after_s is slack.credit_after_s
    assert shadow_kv.victims_for_shadow is kv_class.victims_for_shadow
    assert pushes.push_tokens_now is link_gate.push_tokens_now
    assert shadow_jobs.aligned is segments.aligned


queue_steps: Any = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "served", "served", "served", "done", "switch"]),
        st.integers(0, SESSIONS - 1),
        st.sampled_from([0.5, 0.5, 0.9]),
        st.sampled_from([30, TURN // 2, TURN]),
    ),
    min_size=20,
    max_size=40,
)


@settings(max_examples=80)
@given(queue_steps)
def test_jobs_are_served_in_the_order_of_the_policy(
    steps: list[tuple[str, int, float, int]],
) -> None:
    world, queue = a_world(Approach(segment_tokens=TURN)), ShadowQueue(TURN)
    for step, (kind, session, probability, tokens) in enumerate(steps):
        number, name = session * 2 + 1, f"s{session}"
        job = world.jobs[number]
        present = [waiting.request_id for waiting in queue.ordered() if waiting.session_id == name]
        if kind == "add":
            job.probability = probability
            if job.queued_on == NONE:
                enqueue(world, number, 1)
            else:
                requeue(world, number)
            queue.add(ShadowJob(request_id=f"{step}", session_id=name, probability=probability))
        elif kind == "served" and present:
            served(world, number, tokens)
            queue.served(present[0], tokens)
        elif kind == "done" and present:
            dequeue(world, number)
            queue.cancel(present[0])
        elif kind == "switch":
            dequeue(world, number)
            queue.release(name)
        queue.check()
        order, number = [], world.instances[1].first_job
        while number != NONE:
            order.append(f"s{number // 2}")
            number = world.jobs[number].next_job
        assert order == [waiting.session_id for waiting in queue.ordered()]
        assert len(order) == world.instances[1].queued_jobs


@given(st.integers(0, 20_000), st.integers(0, 20_000), st.sampled_from([16, 1000, 4096]))
def test_segments_end_where_the_policy_ends_them(stable: int, covered: int, size: int) -> None:
    world = a_world(Approach(segment_tokens=size, kv_cap_share=1.0))
    world.jobs[1].stable_tokens = stable
    world.entries[1].tokens = covered
    ends = segment_ends(
        stable_tokens=stable,
        covered_tokens=covered,
        block_size=16,
        segment_tokens=size,
        resubmit_tokens=1024,
        final=True,
    )
    assert shadow_jobs.segment_end(world, 1, 1) == (ends[0] if ends else 0)


routes: Any = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=30)


@settings(max_examples=60)
@given(routes, st.integers(0, 2), st.integers(1, 2), st.sampled_from([0.0, 0.3]))
def test_targets_are_those_of_the_policy(
    seen: list[tuple[int, int]], current: int, top_k: int, least: float
) -> None:
    world = a_world(Approach(top_k=top_k, min_probability=least), models=3)
    prior, models = SwitchPrior(), ("0", "1", "2")
    for before, after in seen:
        observe_next(world, 0, before, after)
        prior.observe("k", str(before), str(after))
    expected = prior.probabilities("k", str(current), models)
    for model in range(3):
        assert share_of(world, 0, current, model) == pytest.approx(expected[str(model)], rel=1e-12)
    world.requests[0].model = current
    choose_targets(world, 0)
    chosen = rank_targets(str(current), expected, top_k, least).chosen
    found = {str(model) for model in range(3) if world.jobs[model].is_target}
    assert found == {target.model for target in chosen}


def test_what_a_router_says_goes_before_what_sessions_did() -> None:
    world = a_world(Approach(top_k=1), models=3)
    world.told[0:3] = [0.1, 0.2, 0.7]
    choose_targets(world, 0)
    assert [job.is_target for job in world.jobs[:3]] == [0, 0, 1]
    assert world.jobs[2].probability == 0.7


class ExactTime:
    """The simulator's latency form, in the place of an engine's model: one job on one batch."""

    trusted_tokens = None

    def __init__(self, world: World, context: int) -> None:
        self.world, self.context = world, context
        self.decodes = world.instances[0].decode_requests
        self.attention_s = decode_attention_s(world, 0)

    def predicted_s(self, batch: Batch) -> float:
        chunk = batch.tokens - self.decodes
        if batch.requests == 0:
            return 0.0
        if chunk == 0:
            return self.attention_s + shared_s(self.world, 0, self.decodes, self.decodes)
        attention_s = self.attention_s + chunk_attention_s(self.world, 0, chunk, self.context)
        return attention_s + shared_s(self.world, 0, batch.tokens, self.decodes + 1)

    def max_tokens_within(self, budget_s: float, batch: Batch, context: int, limit: int) -> int:
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.predicted_s(batch.plus(middle, context)) <= budget_s:
                low = middle
            else:
                high = middle - 1
        return low


@settings(max_examples=150)
@given(
    controller=st.sampled_from(BUDGETED),
    role=st.sampled_from([COLOCATED, PREFILL]),
    decodes=st.integers(0, 60),
    routed=st.integers(0, 2),
    missing=st.sampled_from([16, 112, 256, 304, 1504]),
    context=st.sampled_from([0, 160, 30_000]),
    probability=st.sampled_from([0.2, 0.25, 0.8]),
    credit_s=st.sampled_from([-0.01, 0.0, 0.002, 0.004, 0.006, 0.03]),
    late_s=st.sampled_from([-0.05, -0.025, -0.023, -0.021, 0.05]),
    hindrance=st.sampled_from([*[""] * 8, "waiting", "blocked"]),
    n_min=st.sampled_from([1, 256]),
)
def test_an_iteration_carries_what_the_policys_controller_grants(
    controller: Controller,
    role: int,
    decodes: int,
    routed: int,
    missing: int,
    context: int,
    probability: float,
    credit_s: float,
    late_s: float,
    hindrance: str,
    n_min: int,
) -> None:
    decodes = 0 if role == PREFILL else decodes
    approach = Approach(controller=controller, n_min_tokens=n_min)
    world = a_world(approach, role=role)
    world.cluster[0].now_s = 50.0
    row, job = world.instances[0], world.jobs[0]
    row.decode_requests, row.context_tokens = decodes, 400 * decodes
    row.routed_decodes, row.credit_s = min(routed, decodes), credit_s
    row.iterations_started = row.iterations_ended = 7
    if decodes > routed:
        row.least_due_s = 50.0 - 7 * 0.9 * GEMMA.tpot_slo_s() + late_s
    world.lists[WAITING].length = int(hindrance == "waiting")
    row.admission_blocked = int(hindrance == "blocked")
    world.entries[0].instance, world.entries[0].tokens = 0, context
    row.cached_tokens, row.free_tokens = context, row.pool_tokens - context
    job.end_tokens = job.stable_tokens = context + missing
    job.probability = probability
    enqueue(world, 0, 0)
    exact = ExactTime(world, context)
    policy = SlackController(_params(approach, role))
    policy._credit_s = credit_s
    load = _load(world, job.end_tokens - context, context, probability)
    step_time: Any = exact
    expected = policy.grant(load, step_time)
    base_s = exact.predicted_s(load.planned)
    fill_budget(world, 0, decodes, decodes, exact.attention_s, base_s)
    found = world.chunks[0].tokens if row.shadow_chunks else 0
    assert found == expected.tokens, expected


def _params(approach: Approach, role: int) -> SlackParams:
    return SlackParams(
        controller=approach.controller,
        beta=approach.beta,
        delta=approach.delta,
        margin=approach.margin,
        n_min_tokens=approach.n_min_tokens,
        iteration_cap_s=approach.iteration_cap_s if role == PREFILL else 0.0,
        max_chunk_tokens=2048,
        slo=Slo(ttft_s=1.0, tpot_s=GEMMA.tpot_slo_s()),
        role=Role.PREFILL if role == PREFILL else Role.COLOCATED,
    )


def _load(world: World, missing: int, context: int, probability: float) -> StepLoad:
    row, tpot_s = world.instances[0], GEMMA.tpot_slo_s()
    due_s = NEVER_S
    if row.least_due_s < NEVER_S:
        due_s = decode_due_s(0.1, tpot_s, row.iterations_ended, row.least_due_s)
    return StepLoad(
        now_s=50.0,
        waiting_requests=world.lists[WAITING].length,
        admission_blocked=bool(row.admission_blocked),
        busy=row.decode_requests > 0,
        carries_routed=row.routed_decodes > 0,
        min_tpot_s=tpot_s,
        free_shadow_tokens=row.free_tokens // 4,
        jobs=(JobLoad(missing, context, probability),),
        min_slack_s=due_s - 50.0,
        planned=Batch(row.decode_requests, row.decode_requests, 0.0, row.context_tokens),
    )
