"""The plug-in on vLLM's real Scheduler and AsyncScheduler, with fake model output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.engine import FinishReason
from vllm.v1.request import Request, RequestStatus

from colocated.scheduler import ColocatedScheduler
from engine.kv_room import ShadowKv
from engine.marks import CLASS_KEY, Marks
from engine.params import EngineParamsInvalid
from engine.planning import STALL_S
from engine.shadow_requests import ShadowKVCacheManager
from policy.shadow_queue import ShadowQueue
from policy.vocabulary import Controller, RequestClass, Role
from prefill_node.scheduler import PrefillScheduler
from tests.engine.scheduler_world import (
    BLOCK,
    World,
    a_request,
    normal,
    params,
    prompt,
    routed,
    scheduler_of,
    shadow,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.vllm_cpu

CHUNK = 64
SLOW = {"n_min_tokens": 1, "max_chunk_tokens": 1}
"""A shadow that grows as fast as a request that decodes."""


@pytest.fixture(params=["sync", "async"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def a_world(
    mode: str, *, blocks: int = 2000, vllm: dict[str, Any] | None = None, **changes: Any
) -> World:
    """`changes` are of the plug-in's parameters, `vllm` of the engine's."""
    scheduler = scheduler_of(
        ColocatedScheduler,
        params(**changes),
        asynchronous=mode == "async",
        blocks=blocks,
        **(vllm or {}),
    )
    return World(scheduler, depth=2 if mode == "async" else 1)


def end_of(world: World, name: str) -> tuple[FinishReason | None, int | str | None]:
    return world.finished[name].finish_reason, world.finished[name].stop_reason


def test_the_class_follows_the_mode_that_vllm_runs_in(mode: str) -> None:
    scheduler = a_world(mode).scheduler
    assert isinstance(scheduler, ColocatedScheduler)
    assert isinstance(scheduler, AsyncScheduler) == (mode == "async")


def test_parameters_of_another_role_are_refused() -> None:
    with pytest.raises(EngineParamsInvalid, match="role decode"):
        scheduler_of(PrefillScheduler, params(role=Role.DECODE))


def test_a_shadow_fills_steps_up_to_its_grant_and_hides_again(mode: str) -> None:
    world = a_world(mode)
    world.add(shadow("s", 200))
    assert [world.step() for _ in range(4)] == [{"s": 64}, {"s": 64}, {"s": 64}, {"s": 8}]
    world.run()
    assert end_of(world, "s") == (FinishReason.LENGTH, None)
    assert world.scheduler.shadow_stats.tokens == 200


def test_tokens_that_a_normal_request_leaves_unused_do_not_go_to_a_shadow(mode: str) -> None:
    world = a_world(mode)
    world.add(normal("n", 32, max_tokens=10), shadow("s", 200))
    world.step()
    assert world.step() == {"n": 1, "s": CHUNK}


def test_only_a_shadow_and_what_may_fail_or_hit_goes_through_our_allocation(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of requests run: a call of ours for each would cost more than all planning."""
    asked: list[str] = []
    allocate = ShadowKVCacheManager.allocate_slots

    def noted(manager: ShadowKVCacheManager, request: Request, *args: Any, **kwargs: Any) -> Any:
        asked.append(request.request_id)
        return allocate(manager, request, *args, **kwargs)

    monkeypatch.setattr(ShadowKVCacheManager, "allocate_slots", noted)
    world = a_world(mode, blocks=300, vllm={"max_num_seqs": 32})
    world.add(*[normal(f"n{i}", 32, max_tokens=400) for i in range(4)], shadow("s", 1000))
    world.step()
    assert sorted(asked) == ["n0", "n1", "n2", "n3"]  # they may hit an entry
    world.step()  # the shadow is admitted
    asked.clear()
    assert world.step() == {"n0": 1, "n1": 1, "n2": 1, "n3": 1, "s": CHUNK}
    assert asked == ["s"]
    world.scheduler.finish_requests("s", RequestStatus.FINISHED_ABORTED)
    asked.clear()
    world.step()
    assert asked == []
    for index in range(13):
        world.add(normal(f"filler{index}", 300, max_tokens=400))
        world.step()
    asked.clear()
    world.step()
    assert "n0" in asked  # it may find no block


def test_a_step_that_has_no_time_looks_at_no_job_and_no_kv(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would cost the most where there is least to spare."""
    looked: list[str] = []
    for owner, name in ((ShadowKv, "room"), (ShadowKv, "look_up"), (ShadowQueue, "ordered")):
        monkeypatch.setattr(owner, name, _noting(looked, getattr(owner, name)))
    world = a_world(mode, slo_tpot_s=1e-6)
    world.add(normal("n", 32, max_tokens=10), shadow("s", 200))
    for _ in range(6):
        assert world.step().keys() == {"n"}
    assert looked == []
    world.run()
    assert looked
    assert end_of(world, "s") == (FinishReason.LENGTH, None)


def _noting(names: list[str], method: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*args: Any, **kwargs: Any) -> Any:
        names.append(method.__name__)
        return method(*args, **kwargs)

    return noted


def test_the_prompt_of_a_shadow_that_was_hidden_for_a_step_is_not_sent_again(mode: str) -> None:
    world = a_world(mode)
    world.add(shadow("s", 1000))
    world.step()
    world.step()
    world.add(normal("n", 32, max_tokens=10))
    assert world.step() == {"n": 32}
    output = world.scheduler.schedule()
    assert output.num_scheduled_tokens == {"n": 1, "s": CHUNK}
    assert output.scheduled_cached_reqs.all_token_ids == {}


def test_an_arriving_request_is_in_the_very_next_step_and_alone(mode: str) -> None:
    world = a_world(mode)
    world.add(shadow("s", 1000))
    world.step()
    world.add(normal("n", 300))
    assert world.step() == {"n": 300}


def test_no_shadow_runs_while_a_request_waits(mode: str) -> None:
    world = a_world(mode, vllm={"max_num_seqs": 1})
    world.add(shadow("s", 1000), normal("first", 100, max_tokens=30), normal("second", 100))
    for _ in range(20):
        assert "s" not in world.step()
    world.run()
    assert end_of(world, "s") == (FinishReason.LENGTH, None)


def test_hidden_shadows_keep_the_engine_awake_and_nothing_else_does(mode: str) -> None:
    world = a_world(mode)
    world.add(shadow("s", 200))
    assert world.scheduler.get_num_unfinished_requests() == 1
    world.step()
    assert world.scheduler.running == []
    assert world.scheduler.get_num_unfinished_requests() == 1
    world.run()
    assert world.scheduler.get_num_unfinished_requests() == 0
    assert not world.scheduler.has_requests()


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_client_that_leaves_ends_its_shadow_and_frees_its_blocks(mode: str, steps: int) -> None:
    world = a_world(mode)
    free = world.free_blocks()
    world.add(shadow("s", 1000))
    for _ in range(steps):
        world.step()
    world.scheduler.finish_requests("s", RequestStatus.FINISHED_ABORTED)
    world.run()
    assert world.free_blocks() == free
    assert not world.scheduler.shadows
    assert "s" not in world.finished  # nobody is left to answer


def test_a_longer_shadow_of_the_same_session_supersedes_and_builds_on_the_first(mode: str) -> None:
    world = a_world(mode)
    world.add(shadow("short", prompt(500), session="a"))
    world.step()
    world.step()
    world.add(shadow("long", prompt(600), session="a"))
    world.run()
    assert end_of(world, "short") == (FinishReason.ABORT, "superseded")
    assert end_of(world, "long") == (FinishReason.LENGTH, None)
    assert world.scheduler.shadow_stats.tokens == 600
    assert world.finished["long"].prefill_stats.num_cached_tokens == 2 * CHUNK


def test_a_routed_call_releases_its_shadow_and_uses_what_it_computed(mode: str) -> None:
    world = a_world(mode)
    world.add(shadow("s", prompt(500), session="a"), shadow("other", 500, session="b"))
    world.step()
    world.step()
    done = world.scheduler.shadow_stats.tokens  # a job keeps its turn
    world.add(routed("call", prompt(400), session="a"))
    assert world.step() == {"call": 400 - done}
    world.run()
    assert end_of(world, "s") == (FinishReason.ABORT, "released_by_routed_call")
    assert end_of(world, "other") == (FinishReason.LENGTH, None)


def test_more_probable_shadows_come_first(mode: str) -> None:
    world = a_world(mode)
    world.add(shadow("rare", 200, probability=0.1), shadow("likely", 200, probability=0.9))
    order = [name for _ in range(8) for name in world.step()]
    assert order == sorted(order)  # "likely" < "rare"


def test_what_the_prefix_cache_holds_is_not_computed_again(mode: str) -> None:
    world = a_world(mode)
    world.add(normal("n", prompt(256)))
    world.run()
    world.add(shadow("s", prompt(300)))
    assert world.step() == {"s": 300 - 256}


def test_normal_requests_take_a_shadows_blocks_and_are_not_preempted(mode: str) -> None:
    world = a_world(mode, blocks=40, kv_cap_share=0.9, **SLOW)
    running = normal("n", 10 * BLOCK, max_tokens=25 * BLOCK)
    world.add(running, shadow("s", 20 * BLOCK))
    world.run()
    assert running.num_preemptions == 0
    assert world.emitted["n"] == 25 * BLOCK
    assert world.scheduler.shadow_stats.drops > 0
    assert end_of(world, "s")[0] is FinishReason.LENGTH


def test_an_arrival_that_needs_the_whole_pool_gets_it(mode: str) -> None:
    world = a_world(mode, blocks=41, kv_cap_share=0.9)
    world.add(shadow("s", 30 * BLOCK))
    for _ in range(5):
        world.step()
    world.add(normal("n", 38 * BLOCK))
    world.step()
    world.step()
    world.run()
    assert world.finished["n"].finish_reason is FinishReason.LENGTH
    assert world.finished["s"].finish_reason is FinishReason.LENGTH
    assert world.scheduler.shadow_stats.drops > 0


@pytest.mark.parametrize("blocks", [36, 47, 60, 61, 62, 63])
def test_a_job_that_fills_the_cap_alone_is_truncated_and_never_hangs(
    mode: str, blocks: int
) -> None:
    world = a_world(mode, blocks=blocks, kv_cap_share=0.5)
    world.add(shadow("s", 30 * BLOCK + 5), shadow("t", 12 * BLOCK + 3))
    world.run()  # the second waits until what the first left is old enough
    fits = int(blocks * 0.5) * BLOCK >= 30 * BLOCK + 5
    expected = (FinishReason.LENGTH, None) if fits else (FinishReason.ABORT, "truncated_by_cap")
    assert end_of(world, "s") == expected
    assert end_of(world, "t") == (FinishReason.LENGTH, None)


def test_what_a_truncated_job_computed_stays_in_the_cache(mode: str) -> None:
    world = a_world(mode, blocks=100, kv_cap_share=0.25)
    world.add(shadow("s", prompt(40 * BLOCK)))
    world.run()
    world.add(normal("n", prompt(40 * BLOCK)))
    assert world.step() == {"n": 16 * BLOCK}  # the cap is 25 blocks, less than n_min was left of it


def test_a_shadow_yields_its_slot_when_all_are_wanted(mode: str) -> None:
    world = a_world(mode, vllm={"max_num_seqs": 2})
    world.add(shadow("s", 1000), shadow("t", 1000))
    world.step()
    world.step()
    world.add(normal("n", 50, max_tokens=5), normal("m", 50, max_tokens=5))
    world.step()
    assert not any(job.started for job in world.scheduler.shadows.values())
    world.run()
    assert set(world.finished) == {"s", "t", "n", "m"}


def test_a_streamed_session_that_waits_for_input_keeps_its_slot(mode: str) -> None:
    world = a_world(mode, vllm={"max_num_seqs": 2})
    session = normal("session", 50)
    session.resumable = True
    world.add(session)
    for _ in range(3):
        world.step()
    assert session.status == RequestStatus.WAITING_FOR_STREAMING_REQ
    world.add(shadow("s", 1000, probability=0.5))
    for _ in range(3):
        world.step()
    world.add(shadow("t", 1000))
    for _ in range(3):
        world.step()
        assert sum(job.started for job in world.scheduler.shadows.values()) == 1


def test_priority_scheduling_never_prefers_a_shadow(mode: str) -> None:
    vllm = {"scheduling_policy": "priority"}
    world = a_world(mode, blocks=40, kv_cap_share=0.9, vllm=vllm, **SLOW)
    running = normal("n", 10 * BLOCK, max_tokens=25 * BLOCK)
    world.add(running, shadow("s", 20 * BLOCK))
    world.run()
    assert running.num_preemptions == 0
    assert world.scheduler.shadow_stats.drops > 0
    assert set(world.finished) == {"n", "s"}


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_shadow_that_finds_no_block_in_the_step_gives_way_itself(mode: str, policy: str) -> None:
    """The last chunk of the running request takes what the plan saw free; the shadow is older."""
    world = a_world(mode, blocks=58, kv_cap_share=0.9, vllm={"scheduling_policy": policy})
    world.add(shadow("s", 10 * BLOCK))
    world.step()
    running = normal("n", 812)
    world.add(running)
    assert world.step() == {"n": 512}
    assert world.step() == {"n": 300}
    world.run()
    assert running.num_preemptions == 0
    assert set(world.finished) == {"s", "n"}


def test_an_idle_engine_that_grants_nothing_gives_its_jobs_up(mode: str) -> None:
    world = a_world(mode, controller=Controller.PREDICTIVE)
    world.add(shadow("s", 200, probability=0.1))
    steps = world.run()
    assert end_of(world, "s") == (FinishReason.ABORT, "stalled")
    assert steps * world.step_s > STALL_S


def test_a_shadow_that_is_too_old_is_given_up(mode: str) -> None:
    world = a_world(mode, shadow_timeout_s=0.05)
    world.add(normal("n", 32, max_tokens=50), shadow("s", 2000))
    for _ in range(10):
        world.step()
    assert end_of(world, "s") == (FinishReason.ABORT, "timed_out")


def test_controller_off_answers_at_once(mode: str) -> None:
    world = a_world(mode, controller=Controller.OFF)
    world.add(shadow("s", 200))
    assert world.scheduler.has_requests()
    assert world.step() == {}
    assert end_of(world, "s") == (FinishReason.ABORT, "shadow_off")
    assert not world.scheduler.has_requests()


def test_controller_eager_treats_shadow_work_as_normal_traffic(mode: str) -> None:
    world = a_world(mode, controller=Controller.EAGER)
    world.add(shadow("s", 400), normal("n", 400))
    assert world.step() == {"s": 400, "n": 112}


def test_controller_request_goes_on_beside_waiting_requests_and_keeps_what_is_in_the_step(
    mode: str,
) -> None:
    world = a_world(mode, blocks=40, kv_cap_share=0.9, controller=Controller.REQUEST)
    world.add(shadow("s", 34 * BLOCK))
    assert world.step() == {"s": 512}, "the engine's own token budget"
    world.add(normal("n", 38 * BLOCK))
    assert world.step()["s"] == 2 * BLOCK
    world.run()
    assert set(world.finished) == {"s", "n"}


@pytest.mark.parametrize("state", [PauseState.PAUSED_NEW, PauseState.PAUSED_ALL])
def test_a_pause_gives_shadow_work_up(mode: str, state: PauseState) -> None:
    world = a_world(mode)
    world.add(shadow("running", 1000))
    world.step()
    world.scheduler.set_pause_state(state)
    world.add(shadow("late", 1000))
    world.run(limit=20)
    assert end_of(world, "running") == (FinishReason.ABORT, "paused")
    assert end_of(world, "late") == (FinishReason.ABORT, "paused")


@pytest.mark.parametrize("running", [False, True])
def test_a_cache_reset_succeeds_and_the_shadow_starts_over(mode: str, running: bool) -> None:
    world = a_world(mode)
    world.add(shadow("s", 200))
    world.step()
    world.step()
    assert world.scheduler.reset_prefix_cache(reset_running_requests=running)
    world.run()
    assert end_of(world, "s") == (FinishReason.LENGTH, None)
    assert world.scheduler.shadow_stats.tokens >= 200 + CHUNK


@pytest.mark.parametrize(
    "bad",
    [
        a_request("bad", prompt(20), None, **{CLASS_KEY: "vip"}),
        a_request("bad", prompt(20), Marks(request_class=RequestClass.SHADOW), max_tokens=5),
    ],
    ids=["unknown_class", "shadow_that_wants_tokens"],
)
def test_a_request_with_bad_marks_fails_and_the_engine_lives(mode: str, bad: Any) -> None:
    bad.status = RequestStatus.WAITING
    world = a_world(mode)
    world.add(bad, normal("n", 50))
    world.run()
    assert world.finished["bad"].finish_reason is FinishReason.ERROR
    assert world.finished["n"].finish_reason is FinishReason.LENGTH


def test_a_wrong_secret_is_refused(mode: str) -> None:
    world = a_world(mode, secret="ours")
    world.add(routed("call", 50, session="a"), normal("unmarked", 50))
    world.run()
    assert world.finished["call"].finish_reason is FinishReason.ERROR
    assert world.finished["unmarked"].finish_reason is FinishReason.LENGTH


def test_a_shadow_does_not_cut_a_lone_prefill_to_the_share_of_one_among_several(mode: str) -> None:
    world = a_world(mode, vllm={"long_prefill_token_threshold": 100})
    world.add(normal("n", 700))
    assert world.step() == {"n": 512}
    world.add(shadow("x", 300))
    assert world.step() == {"n": 188, "x": CHUNK}
