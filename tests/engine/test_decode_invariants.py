"""A decode instance under random load and faults: no foreign KV, nothing leaked, and no shadow pull
beside a normal one.

Calls come with hand-offs and without, shadow pulls succeed, fail, time out and end late, clients
leave, pools are tiny. See tests.engine.pulled for what is played."""

from __future__ import annotations

import random
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from vllm.config import KVTransferConfig

from bench.trace_pulls import replay
from decode_node.scheduler import DecodeScheduler
from policy.vocabulary import Role
from tests.engine.kv_runner import answer_to
from tests.engine.kv_watch import check_pool
from tests.engine.played import BLOCK
from tests.engine.pulled import LEASE_S, DecodePlayed
from tests.engine.scheduler_world import params, scheduler_of
from tests.engine.test_scheduler_invariants import STEP_TIME
from tests.engine.traffic import Mix, Script

if TYPE_CHECKING:
    from engine.trace import TracePull

pytestmark = [pytest.mark.vllm_cpu, pytest.mark.nixl]

SEEDS = 12


def a_script(seed: int) -> Script:
    chance = random.Random(seed * 104_729)
    return Script(
        seed,
        Mix(
            iterations=250,
            normal=0.12,
            routed=0.1,
            elsewhere=0.12,
            lone_shadow=0.05,
            leave=0.06,
            longest_prompt=chance.choice([80, 300, 600]),
            longest_answer=chance.choice([10, 40]),
            shared=chance.random() < 0.7,
        ),
    )


@cache
def played(seed: int) -> DecodePlayed:
    script = a_script(seed)
    chance = random.Random(seed * 7919)
    asynchronous = seed % 2 == 1
    blocks = chance.choice([65, 90, 130, 400])
    scheduler = scheduler_of(
        DecodeScheduler,
        params(
            role=Role.DECODE,
            kv_cap_share=chance.choice([0.1, 0.25, 0.5]),
            idle_age_s=chance.choice([0.0, 0.1, 1.0]),
            shadow_timeout_s=chance.choice([0.5, 4.0]),
            pull_timeout_s=chance.choice([0.2, 1.0, 2.0]),
            push_quarantine_s=chance.choice([0.0, 0.3, 2.0]),
            push_tokens=chance.choice([8 * BLOCK, 4096]),
        ),
        asynchronous=asynchronous,
        blocks=blocks,
        max_num_seqs=chance.choice([4, 8]),
        max_num_batched_tokens=chance.choice([128, 512]),
        kv_transfer_config=KVTransferConfig(
            kv_connector="NixlConnector",
            kv_connector_module_path="engine.nixl",
            kv_role="kv_both",
            kv_buffer_device="cpu",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={"kv_lease_duration": int(LEASE_S)},
        ),
    )
    run = DecodePlayed(
        scheduler,
        script.arrivals(),
        STEP_TIME,
        depth=2 if asynchronous else 1,
        blocks=blocks,
        seed=seed,
        bytes_per_s=chance.choice([20_000.0, 100_000.0, 1e7]),
    )
    run.watch.append(lambda run, _output: check(run))
    run.play(script.iterations)
    run.finish()
    run.settle()
    return run


def check(run: Any) -> None:
    """Between any two steps."""
    scheduler = run.scheduler
    scheduler.shadow_queue.check()
    scheduler.kv_cache_manager.block_pool.free_block_queue.check()
    kv = scheduler.shadow_kv
    assert kv.counts.shadow_blocks <= kv.cap_blocks
    check_pool(run, [*run.held_aside(), *run.deferred()])
    for shadow in scheduler.shadows.values():
        assert shadow.visible or shadow.request not in scheduler.waiting


def begun(log: list[TracePull], kv_class: str) -> int:
    return sum(line.phase == "start" and line.kv_class == kv_class for line in log)


def assert_all_ended_well(run: DecodePlayed, script: Script) -> None:
    left = script.left()
    for name, arrival in run.arrivals.items():
        if name not in run.finished:
            assert name in left, f"{name} was never answered"
        elif run.is_shadow(name):
            assert run.answers[name] == [], f"{name} was computed"
        elif run.finished[name].finish_reason.name != "ABORT":
            assert run.answers[name] == answer_to(arrival.prompt, arrival.max_tokens), name
    scheduler = run.scheduler
    assert not scheduler.requests
    assert not scheduler.shadows
    assert not run.held_aside()
    assert run.free_blocks() + len(run.deferred()) == run.blocks - 1
    assert scheduler.link.meter.idle_since_s is not None


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_call_ever_reads_foreign_kv_and_no_push_begins_beside_a_call(seed: int) -> None:
    run = played(seed)
    assert_all_ended_well(run, a_script(seed))
    pulls = replay(run.log)
    assert pulls.violations == []
    assert run.scheduler.link.counts.starts["shadow_beside_normal"] == 0


def test_the_random_loads_reach_what_they_are_for() -> None:
    outcomes: set[str] = set()
    reasons: set[str] = set()
    for seed in range(SEEDS):
        counts = played(seed).scheduler.link.counts
        outcomes |= {name for name, count in counts.outcomes.items() if count}
        reasons |= {str(name) for name, count in counts.looks.items() if count}
        assert counts.refused_hand_offs > 0
    assert {f"{one}_done" for one in ("normal", "shadow")} <= outcomes
    assert {f"{one}_failed" for one in ("normal", "shadow")} <= outcomes
    assert {f"{one}_timed_out" for one in ("normal", "shadow")} <= outcomes
    assert {"normal_transfer_in", "push_outstanding", "quarantined", "no_free_kv"} <= reasons
