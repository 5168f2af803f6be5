"""Invariants of mechanisms.md section 7 under random load, on vLLM's real schedulers.

Each run is compared with the same arrivals, iteration by iteration, on vLLM's own scheduler without
any shadow work. What a real model runner makes of it: test_scheduler_engine.py."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from colocated.scheduler import ColocatedScheduler
from engine.params import EngineParams, StepTimeStart
from policy.vocabulary import Controller, Role
from prefill_node.scheduler import PrefillScheduler
from tests.engine.kv_runner import answer_to
from tests.engine.kv_watch import KvWatch, check_pool
from tests.engine.played import BLOCK, Played
from tests.engine.scheduler_world import params, scheduler_of
from tests.engine.traffic import Arrival, Mix, Script

pytestmark = pytest.mark.vllm_cpu

STEP_TIME = StepTimeStart(
    fixed_s=0.005, s_per_request=0.0002, s_per_token=0.0001, s_per_token_context=1e-8
)
ROLES = {Role.COLOCATED: ColocatedScheduler, Role.PREFILL: PrefillScheduler}
CONTROLLERS = [Controller.HARVEST_SLO, Controller.HARVEST, Controller.PREDICTIVE]
SEEDS = 18
ROUNDING_S = 1e-9


@dataclass(frozen=True)
class Setting:
    """Of one engine; the seed draws it."""

    params: EngineParams
    asynchronous: bool
    blocks: int
    noise: float
    engine_args: dict[str, Any]

    @classmethod
    def drawn(cls, seed: int, *, exact: bool = False) -> Setting:
        chance = random.Random(seed * 7919)
        # Which case is covered is not left to chance.
        role = [Role.COLOCATED, Role.COLOCATED, Role.PREFILL][seed % 3]
        controller = CONTROLLERS[seed // 3 % 3]
        return cls(
            params=_params(chance, role, controller),
            asynchronous=seed % 2 == 1,
            blocks=chance.choice([65, 90, 130, 400]),
            noise=0.0 if exact else chance.choice([0.0, 0.1, 0.4]),
            engine_args={
                "max_num_seqs": chance.choice([4, 8, 12]),
                "max_num_batched_tokens": chance.choice([128, 256, 512]),
                "long_prefill_token_threshold": chance.choice([0, 0, 64]),
                "scheduling_policy": chance.choice(["fcfs", "fcfs", "priority"]),
                "watermark": chance.choice([0.0, 0.0, 0.05]),
            },
        )

    @staticmethod
    def mix(seed: int, *, shared: bool) -> Mix:
        chance = random.Random(seed * 104_729)
        return Mix(
            shared=shared,
            longest_prompt=chance.choice([50, 300, 700]),
            longest_answer=chance.choice([30, 120]),
            normal=chance.choice([0.05, 0.1]),
            routed=chance.choice([0.05, 0.1]),
        )

    @property
    def cap_blocks(self) -> int:
        return int(self.params.kv_cap_share * self.blocks)


def _params(
    chance: random.Random, role: Role, controller: Controller, **changes: Any
) -> EngineParams:
    drawn = params(
        role=role,
        controller=controller,
        slo_ttft_s=chance.choice([0.3, 5.0]),
        slo_tpot_s=0.06,
        beta=chance.choice([0.5, 1.0]),
        delta=chance.choice([0.025, 0.1, 1.0]),
        margin=0.1,
        n_min_tokens=chance.choice([1, 16, 32]),
        max_chunk_tokens=chance.choice([48, 256]),
        iteration_cap_s=chance.choice([0.03, 0.1]),
        kv_cap_share=chance.choice([0.1, 0.25, 0.5, 1.0]),
        idle_age_s=chance.choice([0.0, 0.1, 1.0]),
        shadow_timeout_s=chance.choice([0.5, 4.0]),
        step_time=STEP_TIME,
    )
    return msgspec.structs.replace(drawn, **changes)


def play(script: Script, setting: Setting, scheduler_class: type, *, shadows: bool) -> Played:
    scheduler = scheduler_of(
        scheduler_class,
        setting.params,
        asynchronous=setting.asynchronous,
        blocks=setting.blocks,
        **setting.engine_args,
    )
    run = Played(
        scheduler,
        script.arrivals(),
        STEP_TIME,
        depth=2 if setting.asynchronous else 1,
        blocks=setting.blocks,
        noise=setting.noise,
        seed=script.seed,
    )
    if shadows:
        KvWatch(setting.cap_blocks, setting.params.idle_age_s).attach(run)
        run.arrived.append(check_session)
        run.watch.append(lambda run, _output: run.scheduler.shadow_queue.check())
    run.play(script.iterations if shadows else script.without_shadows())
    run.finish()
    return run


def check_session(run: Played, arrival: Arrival) -> None:
    """A call releases its session's shadow, and so does a newer shadow. One of which every token
    was scheduled has left the queue: it ends when that step comes back."""
    scheduler = run.scheduler
    for name, request in scheduler.requests.items():
        ends_by_itself = request.num_in_flight_tokens > 0 and name not in scheduler.shadow_queue
        if run.is_shadow(name) and name != arrival.name and arrival.session and not ends_by_itself:
            assert run.arrivals[name].session != arrival.session, (name, arrival.name)


def with_shadows(script: Script, setting: Setting) -> Played:
    return play(script, setting, ROLES[setting.params.role], shadows=True)


def twin(script: Script, setting: Setting) -> Played:
    stock = AsyncScheduler if setting.asynchronous else Scheduler
    return play(script, setting, stock, shadows=False)


def assert_all_ended_well(run: Played, script: Script) -> None:
    """Nothing is lost, every answer is what the model says, and nothing is left behind."""
    left = script.left()
    for name, arrival in run.arrivals.items():
        if name not in run.finished:
            assert name in left, f"{name} was never answered"
        elif not run.is_shadow(name) and run.finished[name].finish_reason.name != "ABORT":
            assert run.answers[name] == answer_to(arrival.prompt, arrival.max_tokens), name
    scheduler = run.scheduler
    assert not scheduler.requests
    assert not scheduler.shadows
    assert len(scheduler.shadow_queue) == 0
    assert run.free_blocks() == run.blocks - 1
    assert scheduler.kv_cache_manager.usage == 0
    check_pool(run)


def assert_shadows_gave_way(run: Played, setting: Setting) -> None:
    for index, step in enumerate(run.steps):
        assert step.shadow_tokens <= setting.params.max_chunk_tokens, (index, step)
        if step.shadow_tokens:
            assert not step.waiting_before, (index, step)
            assert not step.waiting_after, (index, step)
            assert not step.preempted, (index, step)
        if step.preempted:
            assert not step.held_by_shadows, (index, step)


def assert_every_step_is_capped(run: Played, setting: Setting) -> None:
    """The time is the true one, of all batches in flight: with an exact model a prediction cannot
    be below it."""
    engine = setting.params
    for index, step in enumerate(run.steps):
        if step.shadow_tokens:
            cap_s = engine.iteration_cap_s
            if step.foreground and engine.role is Role.COLOCATED:
                cap_s = min(cap_s, engine.beta * engine.slo_tpot_s)
            assert step.arrival_wait_s <= cap_s + ROUNDING_S, (index, step)


def assert_credit_is_kept(run: Played, setting: Setting) -> None:
    """Over any window: extra time of protected iterations <= delta x accrual time + one cap."""
    engine = setting.params
    cap_s = min(engine.iteration_cap_s, engine.beta * engine.slo_tpot_s)
    earns = engine.role is Role.COLOCATED
    owed_s = 0.0
    for index, step in enumerate(run.steps):
        slo_alone = engine.controller is Controller.HARVEST_SLO
        if not (step.carries_routed if slo_alone else step.foreground):
            continue
        owed_s = max(0.0, owed_s) + step.whole_s - step.base_s
        if earns and step.decode_only and not step.shadow_tokens:
            owed_s -= engine.delta * step.base_s
        assert owed_s <= (cap_s if earns else 0.0) + ROUNDING_S, (index, owed_s, step)


def assert_same_foreground(run: Played, other: Played) -> None:
    """As far as either goes on: only shadow work may be left over."""
    steps = max(len(run.steps), len(other.steps))
    for index in range(steps):
        ours, theirs = _at(run, index), _at(other, index)
        assert ours == theirs, (index, ours, theirs)


def _at(run: Played, index: int) -> tuple[dict[str, int], list[str]]:
    if index >= len(run.steps):
        return {}, []
    return run.steps[index].foreground, run.steps[index].preempted


@pytest.mark.parametrize("seed", range(SEEDS))
def test_foreground_that_shares_no_prefix_is_scheduled_as_if_there_were_no_shadows(
    seed: int,
) -> None:
    setting = Setting.drawn(seed)
    script = Script(seed, Setting.mix(seed, shared=False))
    run = with_shadows(script, setting)
    assert_all_ended_well(run, script)
    assert_same_foreground(run, twin(script, setting))
    assert_shadows_gave_way(run, setting)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_sessions_that_share_prefixes_with_their_shadows_lose_nothing(seed: int) -> None:
    setting = Setting.drawn(seed)
    script = Script(seed, Setting.mix(seed, shared=True))
    run = with_shadows(script, setting)
    assert_all_ended_well(run, script)
    assert_shadows_gave_way(run, setting)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_step_lasts_longer_than_its_cap_and_no_credit_is_overdrawn(seed: int) -> None:
    setting = Setting.drawn(seed, exact=True)
    script = Script(seed, Setting.mix(seed, shared=seed % 4 > 1))
    run = with_shadows(script, setting)
    assert_every_step_is_capped(run, setting)
    assert_credit_is_kept(run, setting)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("seed", range(6))
def test_a_burst_into_a_pool_full_of_shadow_kv_is_served_as_if_it_were_empty(
    seed: int, asynchronous: bool
) -> None:
    chance = random.Random(seed)
    setting = replace(
        Setting.drawn(seed),
        asynchronous=asynchronous,
        blocks=chance.randrange(80, 160),
        params=_params(
            chance,
            Role.COLOCATED,
            Controller.HARVEST_SLO,
            kv_cap_share=1.0,
            shadow_timeout_s=60.0,
            max_chunk_tokens=48,
            idle_age_s=0.0,
        ),
        engine_args={"max_num_seqs": 64, "max_num_batched_tokens": 512},
    )
    script = Script(seed, Mix(iterations=0))
    at_work = seed % 2 == 1
    burst_at = script.fill_then_burst(setting.blocks * BLOCK, quiet=80 if at_work else 600)
    run = with_shadows(script, setting)
    assert_all_ended_well(run, script)
    shadow_tokens = sum(step.shadow_tokens for step in run.steps[:burst_at])
    assert shadow_tokens > 0.8 * setting.blocks * BLOCK
    assert bool(run.steps[burst_at - 1].held_by_shadows) == at_work
    assert_same_foreground(run, twin(script, setting))
