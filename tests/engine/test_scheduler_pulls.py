"""Hand-offs on vLLM's real scheduler and the scheduler half of its NIXL connector; the worker half,
which moves the bytes, is played by the test."""

from __future__ import annotations

import time
from typing import Any

import pytest
from vllm.config import KVTransferConfig
from vllm.v1.engine import FinishReason
from vllm.v1.request import RequestStatus

from decode_node.scheduler import DecodeScheduler
from kv_transport.kv_params import PREFILL_LEG_KV_PARAMS
from policy.vocabulary import Controller
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

pytestmark = [pytest.mark.vllm_cpu, pytest.mark.nixl]

NIXL = KVTransferConfig(
    kv_connector="NixlConnector",
    kv_connector_module_path="engine.nixl",
    kv_role="kv_both",
    kv_buffer_device="cpu",
    kv_load_failure_policy="recompute",
)


@pytest.fixture(params=["sync", "async"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def a_world(kind: Any, mode: str, *, blocks: int = 2000, **changes: Any) -> World:
    scheduler = scheduler_of(
        kind,
        params(role=kind.role, **changes),
        asynchronous=mode == "async",
        blocks=blocks,
        kv_transfer_config=NIXL,
    )
    return World(scheduler, depth=2 if mode == "async" else 1)


def a_hand_off(tokens: int, **changes: Any) -> dict[str, Any]:
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(range(1, -(-tokens // BLOCK) + 1))],
        "remote_engine_id": "p",
        "remote_request_id": "p-1",
        "remote_host": "127.0.0.1",
        "remote_port": 1,
        "remote_num_tokens": tokens,
        "remote_blocks_expiry_time": time.perf_counter() + 30.0,
        "tp_size": 1,
    } | changes


def a_shadow_pull(name: str, tokens: int = 100, session: str = "", **changes: Any) -> Any:
    hand_off = a_hand_off(tokens, **changes)
    return shadow(name, tokens, session=session, kv_transfer_params=hand_off)


def a_pull(name: str, tokens: int = 100, **changes: Any) -> Any:
    hand_off = a_hand_off(tokens, **changes)
    return a_request(name, prompt(tokens, seed=99), None, 3, kv_transfer_params=hand_off)


def is_pulling(world: World, name: str) -> bool:
    request = world.scheduler.requests.get(name)
    return request is not None and request.status == RequestStatus.WAITING_FOR_REMOTE_KVS


# P: hide and unhide together with a connector


def test_a_hidden_shadow_hands_over_and_pins_its_blocks_until_they_are_read(mode: str) -> None:
    world = a_world(PrefillScheduler, mode)
    free = world.free_blocks()
    world.add(shadow("s", 200, kv_transfer_params=dict(PREFILL_LEG_KV_PARAMS)))
    for _ in range(6):
        world.step()
    hand_off = world.finished["s"].kv_transfer_params
    assert hand_off is not None
    assert hand_off["do_remote_prefill"] is True
    assert hand_off["remote_num_tokens"] == 200
    assert 0 < hand_off["remote_blocks_expiry_time"] - time.perf_counter() <= 30.0
    assert len(hand_off["remote_block_ids"][0]) == -(-200 // BLOCK)
    assert world.free_blocks() == free - -(-200 // BLOCK)
    assert world.scheduler.shadow_kv.pinned == {"s"}
    world.sent = {"s"}
    world.run()
    assert world.free_blocks() == free
    assert world.scheduler.shadow_kv.pinned == set()


def test_a_shadow_that_was_dropped_for_memory_still_hands_over_all_its_blocks(mode: str) -> None:
    slow = {"n_min_tokens": 1, "max_chunk_tokens": 1}
    world = a_world(PrefillScheduler, mode, blocks=40, kv_cap_share=0.9, **slow)
    hand_off = dict(PREFILL_LEG_KV_PARAMS)
    running = normal("n", 10 * BLOCK, max_tokens=25 * BLOCK)
    world.add(running, shadow("s", 20 * BLOCK, kv_transfer_params=hand_off))
    while "s" not in world.finished:
        world.step()
    assert world.scheduler.shadow_stats.drops > 0
    assert running.num_preemptions == 0
    answer = world.finished["s"].kv_transfer_params
    assert answer is not None
    assert len(answer["remote_block_ids"][0]) == 20


def test_an_aborted_shadow_pins_nothing(mode: str) -> None:
    world = a_world(PrefillScheduler, mode)
    free = world.free_blocks()
    world.add(shadow("s", 200, session="a", kv_transfer_params=dict(PREFILL_LEG_KV_PARAMS)))
    world.step()
    world.add(routed("call", 50, session="a"))
    world.run()
    assert world.finished["s"].finish_reason is FinishReason.ABORT
    assert world.finished["s"].kv_transfer_params is None
    assert world.free_blocks() == free


def test_an_answer_that_nobody_took_pins_nothing(mode: str) -> None:
    world = a_world(PrefillScheduler, mode)
    call = a_request("call", prompt(100), None, 1, kv_transfer_params=dict(PREFILL_LEG_KV_PARAMS))
    world.add(call)
    for _ in range(3):
        world.step()
    assert world.finished["call"].kv_transfer_params is not None
    # As the front end does for a client that leaves before it has heard of the end.
    world.scheduler.finish_requests(["call"], RequestStatus.FINISHED_ABORTED)
    told = world.scheduler.schedule().kv_connector_metadata
    assert told.reqs_to_send["call"] <= told.scheduler_clock


def test_pinned_hand_offs_count_against_the_cap(mode: str) -> None:
    world = a_world(PrefillScheduler, mode, blocks=100, kv_cap_share=0.25)
    for name in ("s", "t"):
        world.add(shadow(name, 15 * BLOCK, kv_transfer_params=dict(PREFILL_LEG_KV_PARAMS)))
        for _ in range(10):
            world.step()
    assert "s" in world.finished
    assert "t" not in world.finished
    world.sent = {"s"}
    for _ in range(10):
        world.step()
    assert "t" not in world.finished  # they are cached now, and still count
    world.now_s += 5.0
    for _ in range(10):
        world.step()
    assert world.finished["t"].finish_reason is FinishReason.LENGTH


# D: shadow pulls


def test_a_shadow_pull_ends_without_a_forward_pass_and_leaves_its_blocks(mode: str) -> None:
    world = a_world(DecodeScheduler, mode)
    world.add(a_shadow_pull("s"))
    assert world.step() == {}
    assert is_pulling(world, "s")
    world.received = {"s"}
    world.step()
    world.step()
    assert world.finished["s"].finish_reason is FinishReason.LENGTH
    assert world.emitted["s"] == 0
    assert not world.scheduler.has_requests()
    ids = world.scheduler.shadow_stats
    assert ids.pulled == 1
    tokens = a_shadow_pull("s").prompt_token_ids
    world.add(normal("n", tokens))
    assert world.step() == {"n": 100 % BLOCK}


def test_only_what_is_missing_is_pulled(mode: str) -> None:
    world = a_world(DecodeScheduler, mode)
    for name, tokens in (("first", 5 * BLOCK), ("second", 8 * BLOCK)):
        world.add(shadow(name, prompt(tokens), kv_transfer_params=a_hand_off(tokens)))
        output = world.scheduler.schedule()
        pulled = output.kv_connector_metadata.reqs_to_recv[name].local_block_ids[0]
        assert len(pulled) == {"first": 5, "second": 3}[name]
        world.received = {name}
        world.run()


def test_a_shadow_pull_waits_for_normal_pulls_and_waiting_requests(mode: str) -> None:
    world = a_world(DecodeScheduler, mode)
    world.add(a_pull("call"), a_shadow_pull("s"))
    for _ in range(3):
        world.step()
    assert is_pulling(world, "call")
    assert not is_pulling(world, "s")
    world.received = {"call"}
    for _ in range(4):
        world.step()
    assert is_pulling(world, "s")


def test_one_shadow_pull_at_a_time(mode: str) -> None:
    world = a_world(DecodeScheduler, mode)
    world.add(a_shadow_pull("s"), a_shadow_pull("t"))
    for _ in range(3):
        world.step()
    assert [is_pulling(world, name) for name in "st"] == [True, False]
    world.received = {"s"}
    for _ in range(3):
        world.step()
    assert is_pulling(world, "t")


def test_a_call_is_not_held_up_by_a_shadow_pull_in_flight(mode: str) -> None:
    world = a_world(DecodeScheduler, mode)
    world.add(a_shadow_pull("s"))
    world.step()
    world.add(a_pull("call"), normal("n", 50))
    assert world.step() == {"n": 50}
    assert is_pulling(world, "call")


def test_a_held_pull_is_released_by_a_call_of_its_session_and_the_other_side_is_told(
    mode: str,
) -> None:
    world = a_world(DecodeScheduler, mode)
    world.add(a_pull("busy"), a_shadow_pull("s", session="a"))
    world.step()
    world.add(routed("call", 50, session="a"))
    output = world.scheduler.schedule()
    told = output.kv_connector_metadata.reqs_to_recv
    assert list(told) == ["s"]
    assert told["s"].local_block_ids == []
    assert "s" not in world.scheduler.requests


@pytest.mark.parametrize(
    "hand_off",
    [
        None,
        {"do_remote_prefill": False},
        {"do_remote_prefill": True},
        a_hand_off(100, remote_block_ids=[[]]),
        a_hand_off(100, remote_block_ids=None),
        a_hand_off(100, remote_block_ids=7),
        a_hand_off(100, remote_host=None),
        a_hand_off(99),
        a_hand_off(100, remote_blocks_expiry_time=None),
    ],
    ids=[
        *("none", "not_asked", "empty", "no_blocks", "null", "number", "no_host", "other_length"),
        "no_lease",
    ],
)
def test_without_a_usable_hand_off_a_shadow_ends_and_a_call_is_computed(
    mode: str, hand_off: dict[str, Any] | None
) -> None:
    world = a_world(DecodeScheduler, mode)
    extra = {} if hand_off is None else {"kv_transfer_params": hand_off}
    world.add(shadow("s", 100, **{key: dict(value) for key, value in extra.items()}))
    world.add(a_request("call", prompt(100, seed=5), None, 2, **extra))
    assert world.step() == {"call": 100}
    world.run()
    assert world.finished["s"].finish_reason is FinishReason.ABORT
    assert world.finished["s"].stop_reason == "no_handoff"
    assert world.emitted == {"s": 0, "call": 2}


def test_the_blocks_of_a_call_that_the_front_end_refused_are_given_back(mode: str) -> None:
    world = a_world(DecodeScheduler, mode)
    # As AsyncLLM.notify_kv_transfer_request_rejected makes it: one token, whatever the prompt was.
    refused = a_request("call", [0], None, 1, kv_transfer_params=a_hand_off(100))
    refused.abort_immediately = True
    world.add(refused)
    world.scheduler.finish_requests("call", RequestStatus.FINISHED_ABORTED)
    told = world.scheduler.schedule().kv_connector_metadata.reqs_to_recv
    assert told["call"].local_block_ids == []
    assert told["call"].remote.request_id == "p-1"


def test_a_shadow_that_vllm_would_compute_although_it_could_be_pulled_ends(mode: str) -> None:
    world = a_world(DecodeScheduler, mode)
    pull = a_shadow_pull("s")
    pull.skip_reading_prefix_cache = True  # as with prompt_logprobs
    world.add(pull)
    world.run()
    assert world.finished["s"].stop_reason == "no_handoff"


def test_a_pull_that_vllm_does_not_admit_leaves_its_queue_again(mode: str) -> None:
    world = a_world(DecodeScheduler, mode)
    world.scheduler.max_num_active_reqs = 1  # fewer than the slots that the gate counts
    world.add(normal("n", 50, max_tokens=20))
    world.step()
    world.add(a_shadow_pull("s"))
    world.step()
    world.step()
    assert not world.scheduler.shadows["s"].visible
    assert not world.scheduler.waiting
    world.scheduler.max_num_active_reqs = 8
    world.step()
    assert is_pulling(world, "s")


def test_a_shadow_pull_beyond_the_cap_ends_at_once(mode: str) -> None:
    world = a_world(DecodeScheduler, mode, blocks=100, kv_cap_share=0.25)
    world.add(a_shadow_pull("s", tokens=26 * BLOCK))
    world.run()
    assert world.finished["s"].stop_reason == "truncated_by_cap"


def test_a_pull_beyond_the_cap_is_made_if_calls_left_its_start_here(mode: str) -> None:
    world = a_world(DecodeScheduler, mode, blocks=100, kv_cap_share=0.25)
    history = prompt(45 * BLOCK, seed=3)
    world.add(normal("call", history[: 30 * BLOCK]))
    world.run()
    world.add(shadow("s", history, kv_transfer_params=a_hand_off(45 * BLOCK)))
    world.step()
    assert is_pulling(world, "s")
    assert world.scheduler.shadow_kv.counts.shadow_blocks == 15


def test_pulled_blocks_are_shadow_kv_until_a_call_uses_them(mode: str) -> None:
    world = a_world(DecodeScheduler, mode, blocks=100, kv_cap_share=0.25)
    history = prompt(20 * BLOCK, seed=3)
    world.add(shadow("s", history, session="a", kv_transfer_params=a_hand_off(20 * BLOCK)))
    world.step()
    counts = world.scheduler.shadow_kv.counts
    assert (counts.shadow_blocks, counts.cached_shadow_blocks) == (20, 0)
    world.received = {"s"}
    world.run()
    assert world.scheduler.shadow_kv.counts.cached_shadow_blocks == 20
    world.add(routed("call", history[: 12 * BLOCK + 1], "a"))
    world.run()
    counts = world.scheduler.shadow_kv.counts
    assert (counts.shadow_blocks, counts.promotions) == (8, 12)
    world.add(normal("burst", 99 * BLOCK))
    world.run()
    world.scheduler.kv_cache_manager.block_pool.free_block_queue.check()
    assert world.scheduler.shadow_kv.counts.shadow_blocks == 0


def test_a_pull_waits_until_older_pulls_may_be_displaced(mode: str) -> None:
    world = a_world(DecodeScheduler, mode, blocks=100, kv_cap_share=0.25)
    world.add(a_shadow_pull("s", tokens=20 * BLOCK))
    world.step()
    world.received = {"s"}
    world.run()
    world.add(a_shadow_pull("t", tokens=20 * BLOCK))
    for _ in range(3):
        world.step()
    assert not is_pulling(world, "t")
    world.now_s += 5.0
    world.step()
    assert is_pulling(world, "t")
    assert world.scheduler.shadow_kv.counts.shadow_blocks == 25


def test_a_failed_shadow_pull_ends_and_leaves_nothing_behind(mode: str) -> None:
    world = a_world(DecodeScheduler, mode)
    free = world.free_blocks()
    world.add(a_shadow_pull("s"))
    world.step()
    world.received, world.failed = {"s"}, {"s"}
    world.run()
    assert world.finished["s"].stop_reason == "pull_failed"
    assert world.free_blocks() == free
    world.add(normal("n", a_shadow_pull("s").prompt_token_ids))
    assert world.step() == {"n": 100}


# Pulls without an end


def test_a_call_whose_pull_never_ends_is_computed_and_its_blocks_are_kept_aside(mode: str) -> None:
    world = a_world(DecodeScheduler, mode, pull_timeout_s=1.0)
    free = world.free_blocks()
    world.add(a_pull("call"))
    world.step()
    assert is_pulling(world, "call")
    world.now_s += 1.5
    assert world.step() == {"call": 100}
    world.run()
    assert world.finished["call"].finish_reason is FinishReason.LENGTH
    assert world.emitted["call"] == 3
    assert free - world.free_blocks() == -(-100 // BLOCK)


def test_a_transfer_that_ends_late_gives_the_blocks_back(mode: str) -> None:
    world = a_world(DecodeScheduler, mode, pull_timeout_s=1.0)
    free = world.free_blocks()
    world.add(a_pull("call"))
    world.step()
    world.now_s += 1.5
    world.run()
    world.add(normal("n", 20))
    world.received = {"call"}
    world.run()
    assert world.free_blocks() == free


@pytest.mark.parametrize("failed", [False, True])
def test_a_late_transfer_may_end_while_its_call_is_being_computed(mode: str, failed: bool) -> None:
    world = a_world(DecodeScheduler, mode, pull_timeout_s=1.0)
    free = world.free_blocks()
    world.add(a_pull("call", tokens=1200))
    world.step()
    world.now_s += 1.5
    assert world.step() == {"call": 512}
    world.received = {"call"}
    world.failed = {"call"} if failed else set()
    world.run()
    assert world.emitted["call"] == 3
    assert world.free_blocks() == free


def test_a_shadow_pull_that_never_ends_ends(mode: str) -> None:
    world = a_world(DecodeScheduler, mode, pull_timeout_s=1.0)
    world.add(a_shadow_pull("s"))
    world.step()
    world.now_s += 1.5
    world.run()
    assert world.finished["s"].stop_reason == "pull_timed_out"
    assert not world.scheduler.has_requests()


def test_a_pull_that_arrived_is_not_timed_out_while_it_waits_for_a_slot(mode: str) -> None:
    world = a_world(DecodeScheduler, mode, pull_timeout_s=1.0)
    world.scheduler.max_num_active_reqs = 1
    world.add(normal("n", 50, max_tokens=300))
    world.step()
    world.scheduler.max_num_active_reqs = 2
    world.add(a_pull("call"))
    world.step()
    world.scheduler.max_num_active_reqs = 1
    world.received = {"call"}
    world.step()
    world.step()
    world.now_s += 1.5
    world.step()
    assert world.scheduler.shadow_stats.pulls_timed_out == 0


def test_controller_off_pulls_nothing(mode: str) -> None:
    world = a_world(DecodeScheduler, mode, controller=Controller.OFF)
    world.add(a_shadow_pull("s"))
    world.run()
    assert world.finished["s"].stop_reason == "shadow_off"
