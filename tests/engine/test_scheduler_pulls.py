"""Hand-offs on vLLM's real scheduler and the scheduler half of its NIXL connector; the worker half,
which moves the bytes, is played by the test."""

from __future__ import annotations

import itertools
import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from vllm.config import KVTransferConfig
from vllm.v1.engine import FinishReason
from vllm.v1.request import RequestStatus

from bench.trace_pulls import replay
from bench.trace_read import read_trace
from decode_node.scheduler import DecodeScheduler
from engine.kv_connectors import KV_ROLES
from engine.params import CONNECTOR_MODULE
from engine.push_ask import ASK_KEY, PushAnswer, PushAsk, ask_xargs, read_answer
from kv_transport.kv_params import PREFILL_LEG_KV_PARAMS
from kv_transport.seal import SEAL_KEY, prompt_digest, sealed
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

if TYPE_CHECKING:
    from pathlib import Path

_numbers = itertools.count(1)

pytestmark = [pytest.mark.vllm_cpu, pytest.mark.nixl]

NIXL = {
    role: KVTransferConfig(
        kv_connector="NixlConnector",
        kv_connector_module_path=CONNECTOR_MODULE,
        kv_role=kv_role,
        kv_buffer_device="cpu",
        kv_load_failure_policy="recompute",
    )
    for role, kv_role in KV_ROLES.items()
}


@pytest.fixture(params=["sync", "async"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def a_world(kind: Any, mode: str, *, blocks: int = 2000, **changes: Any) -> World:
    scheduler = scheduler_of(
        kind,
        params(role=kind.role, **changes),
        asynchronous=mode == "async",
        blocks=blocks,
        kv_transfer_config=NIXL[kind.role],
    )
    return World(scheduler, depth=2 if mode == "async" else 1)


def a_hand_off(tokens: int, **changes: Any) -> dict[str, Any]:
    """Another one each time; changes are sealed as P's own words."""
    fields: dict[str, Any] = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(range(1, -(-tokens // BLOCK) + 1))],
        "remote_engine_id": "p",
        "remote_request_id": f"p-{next(_numbers)}",
        "remote_host": "127.0.0.1",
        "remote_port": 1,
        "remote_num_tokens": tokens,
        "remote_blocks_expiry_time": time.perf_counter() + 30.0,
        "tp_size": 1,
    }
    return sealed(fields | changes, prompt="", secret="")


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
    refused = a_request(
        "call", [0], None, 1, kv_transfer_params=a_hand_off(100, remote_request_id="p-1")
    )
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


# Which hand-offs reach the connector


def a_sealed_pull(name: str, tokens: list[int], secret: str = "", **changes: Any) -> Any:
    """Sealed for its very prompt, then changed."""
    hand_off = sealed(a_hand_off(len(tokens)), prompt_digest(tokens), secret)
    return a_request(name, tokens, None, 2, kv_transfer_params=hand_off | changes)


def test_what_p_hands_over_d_takes_for_that_prompt_and_for_no_other(mode: str) -> None:
    p = a_world(PrefillScheduler, mode, secret="s3cret")
    marks = {"kv_transfer_params": dict(PREFILL_LEG_KV_PARAMS)}
    tokens, other = prompt(100, seed=5), prompt(100, seed=6)
    p.add(a_request("call", tokens, None, 1, **marks))
    while "call" not in p.finished:
        p.step()
    answer = json.loads(json.dumps(p.finished["call"].kv_transfer_params))
    for ids, is_taken in ((other, False), (tokens, True)):
        d = a_world(DecodeScheduler, mode, secret="s3cret")
        d.add(a_request("call", ids, None, 2, kv_transfer_params=dict(answer)))
        d.step()
        assert is_pulling(d, "call") is is_taken
    d = a_world(DecodeScheduler, mode, secret="another")
    d.add(a_request("call", tokens, None, 2, kv_transfer_params=dict(answer)))
    assert d.step() == {"call": 100}


@pytest.mark.parametrize(
    "changes",
    [
        {"remote_block_ids": [list(range(20, 27))]},
        {"remote_request_id": "p-other"},
        {"remote_engine_id": "other"},
        {"remote_port": 2},
        {"remote_blocks_expiry_time": 1e12},
        {SEAL_KEY: None},
        {SEAL_KEY: "x"},
    ],
    ids=["blocks", "request", "engine", "port", "lease", "no_seal", "text"],
)
def test_a_hand_off_that_a_client_made_or_changed_never_reaches_the_connector(
    mode: str, changes: dict[str, Any]
) -> None:
    world = a_world(DecodeScheduler, mode)
    world.add(a_sealed_pull("call", prompt(100, seed=5), **changes))
    output = world.scheduler.schedule()
    assert output.num_scheduled_tokens == {"call": 100}
    assert output.kv_connector_metadata.reqs_to_recv == {}
    assert world.scheduler.link.counts.refused_hand_offs == 1


def test_a_hand_off_is_used_once(mode: str) -> None:
    world = a_world(DecodeScheduler, mode)
    hand_off = a_hand_off(100)
    for name in ("first", "again"):
        pull = a_request(name, prompt(100, seed=5), None, 2, kv_transfer_params=dict(hand_off))
        world.add(pull)
    assert world.step() == {"again": 100}
    assert is_pulling(world, "first")
    world.now_s += 59.0
    world.add(a_shadow_pull("s"))
    shadow_pull = shadow("late", prompt(100, seed=5), kv_transfer_params=dict(hand_off))
    world.add(shadow_pull)
    for _ in range(3):
        world.step()
    assert world.finished["late"].stop_reason == "no_handoff"


def test_a_held_push_ends_when_its_blocks_cannot_be_read_in_time_any_more(mode: str) -> None:
    world = a_world(DecodeScheduler, mode, pull_timeout_s=1000.0)
    world.add(a_pull("busy"), a_shadow_pull("s"))
    world.step()
    world.now_s += 24.9
    world.step()
    assert "s" not in world.finished
    world.now_s += 0.2  # vLLM's lease is 30 s, less the margin
    told = world.scheduler.schedule().kv_connector_metadata.reqs_to_recv
    assert told["s"].local_block_ids == []


# The gate


def test_a_push_that_finds_no_room_holds_up_none_behind_it(mode: str) -> None:
    world = a_world(DecodeScheduler, mode, blocks=100, kv_cap_share=0.25)
    world.add(a_shadow_pull("first", tokens=20 * BLOCK))
    world.step()
    world.received = {"first"}
    world.run()
    world.add(a_shadow_pull("large", tokens=20 * BLOCK), a_shadow_pull("small", tokens=4 * BLOCK))
    for _ in range(3):
        world.step()
    assert [is_pulling(world, name) for name in ("large", "small")] == [False, True]


def test_a_push_that_is_longer_than_one_may_be_ends(mode: str) -> None:
    world = a_world(DecodeScheduler, mode, push_tokens=6 * BLOCK)
    history = prompt(10 * BLOCK, seed=3)
    world.add(shadow("s", history, kv_transfer_params=a_hand_off(10 * BLOCK)))
    world.run()
    assert world.finished["s"].stop_reason == "push_too_long"
    for end in (5, 10):  # in two pieces it moves
        name = f"s{end}"
        pull = shadow(name, history[: end * BLOCK], kv_transfer_params=a_hand_off(end * BLOCK))
        world.add(pull)
        world.step()
        assert is_pulling(world, name)
        world.received = {name}
        world.run()


def test_a_push_of_which_no_whole_block_is_missing_moves_nothing_and_frees_p(mode: str) -> None:
    world = a_world(DecodeScheduler, mode)
    history = prompt(100, seed=3)
    world.add(normal("n", history))
    world.run()
    world.add(shadow("s", history, kv_transfer_params=a_hand_off(100)))
    told = world.scheduler.schedule().kv_connector_metadata.reqs_to_recv
    assert told["s"].local_block_ids == []
    assert world.scheduler.link.meter.idle_since_s == 0.0


def test_a_call_that_was_aborted_while_it_pulls_closes_the_gate_until_its_bytes_are_here(
    mode: str,
) -> None:
    world = a_world(DecodeScheduler, mode)
    world.add(a_pull("call"))
    world.step()
    world.scheduler.finish_requests("call", RequestStatus.FINISHED_ABORTED)
    world.add(a_shadow_pull("s"))
    for _ in range(3):
        world.step()
    assert not is_pulling(world, "s")
    world.received = {"call"}
    for _ in range(3):
        world.step()
    assert is_pulling(world, "s")


# Pairs


def test_a_pair_that_failed_gets_no_push_until_its_time_is_over(mode: str) -> None:
    world = a_world(DecodeScheduler, mode, push_quarantine_s=60.0)
    world.add(a_shadow_pull("s"))
    world.step()
    world.received, world.failed = {"s"}, {"s"}
    world.run()
    world.add(a_shadow_pull("t"), a_shadow_pull("other", remote_port=2))
    for _ in range(3):
        world.step()
    assert world.finished["t"].stop_reason == "quarantined"
    assert is_pulling(world, "other")
    world.received = {"other"}
    world.run()
    world.now_s += 60.0
    world.add(a_shadow_pull("u"))
    world.step()
    assert is_pulling(world, "u")


def test_a_pull_that_timed_out_closes_the_pair_and_a_call_that_arrives_opens_it(mode: str) -> None:
    world = a_world(DecodeScheduler, mode, pull_timeout_s=1.0)
    world.add(a_pull("call"))
    world.step()
    world.now_s += 1.5
    world.run()
    gate = world.scheduler.link.gate
    assert gate.quarantined(world.now_s) == ["127.0.0.1:1"]
    world.add(a_pull("next"))  # calls go on: their P has answered
    world.step()
    assert is_pulling(world, "next")
    world.received = {"next"}
    world.run()
    assert gate.quarantined(world.now_s) == []
    assert world.scheduler.link.reading(world.now_s).quarantines == 1


def test_a_transfer_that_was_given_up_closes_the_gate_only_as_long_as_its_pair_is_closed(
    mode: str,
) -> None:
    world = a_world(DecodeScheduler, mode, pull_timeout_s=1.0, push_quarantine_s=60.0)
    world.add(a_pull("call"))
    world.step()
    world.now_s += 1.5
    for _ in range(10):
        world.step()
    world.add(a_shadow_pull("s", remote_port=2))
    for _ in range(3):
        world.step()
    assert not is_pulling(world, "s")
    world.scheduler.shadows["s"].arrival_s += 60.0
    world.now_s += 60.0
    world.step()
    assert is_pulling(world, "s")


# Asks


def an_ask(
    world: World, tokens: list[int], session: str = "a", name: str = "ask", **fields: Any
) -> PushAnswer:
    fields = {"peer": "127.0.0.1:1"} | fields
    world.add(shadow(name, tokens, session=session, **ask_xargs(PushAsk(**fields))))
    world.step()
    world.step()
    assert world.emitted[name] == 0
    return read_answer(world.finished[name].stop_reason)


def test_an_ask_is_answered_at_once_with_what_d_holds_and_what_may_come(mode: str) -> None:
    world = a_world(DecodeScheduler, mode, push_tokens=4 * BLOCK)
    history = prompt(10 * BLOCK, seed=3)
    world.add(normal("n", history[: 3 * BLOCK]))
    world.run()
    free = world.free_blocks()
    answer = an_ask(world, history)
    assert answer == PushAnswer(reason="granted", tokens=4 * BLOCK, held_tokens=3 * BLOCK)
    assert world.free_blocks() == free
    assert not world.scheduler.has_requests()


def test_one_grant_at_a_time_until_the_push_is_here_given_back_or_expired(mode: str) -> None:
    world = a_world(DecodeScheduler, mode, push_grant_s=10.0)
    history = prompt(10 * BLOCK, seed=3)
    assert an_ask(world, history, "a", "a1").reason == "granted"
    assert an_ask(world, history, "b", "b1").reason == "push_outstanding"
    assert an_ask(world, history, "a", "a2", gives_back=True).reason == "given_back"
    assert an_ask(world, history, "b", "b2").reason == "granted"
    world.now_s += 10.0
    assert an_ask(world, history, "a", "a3").reason == "granted"
    world.add(a_shadow_pull("push", tokens=5 * BLOCK, session="a"))
    world.step()
    assert is_pulling(world, "push")
    assert an_ask(world, history, "b", "b3").reason == "push_outstanding"
    world.received = {"push"}
    world.run()
    assert an_ask(world, history, "b", "b4").reason == "granted"


def test_nothing_is_granted_while_calls_move_on_either_end(mode: str) -> None:
    world = a_world(DecodeScheduler, mode)
    history = prompt(10 * BLOCK, seed=3)
    assert an_ask(world, history, name="out", normal_out=1).reason == "normal_transfer_out"
    world.add(a_pull("call"))
    world.step()
    assert an_ask(world, history, name="in").reason == "normal_transfer_in"


def test_an_ask_says_why_there_is_no_shadow_work_here(mode: str) -> None:
    off = a_world(DecodeScheduler, mode, controller=Controller.OFF)
    assert an_ask(off, prompt(100)).reason == "shadow_off"
    small = a_world(DecodeScheduler, mode, blocks=100, kv_cap_share=0.25)
    assert an_ask(small, prompt(30 * BLOCK)).reason == "truncated_by_cap"


def test_an_ask_that_cannot_be_read_is_refused(mode: str) -> None:
    world = a_world(DecodeScheduler, mode)
    world.add(shadow("ask", 100, **{ASK_KEY: "{}"}))
    world.run()
    assert world.finished["ask"].finish_reason is FinishReason.ERROR


# The log of starts


def test_every_transfer_is_logged_with_what_moved_beside_it(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    world = a_world(DecodeScheduler, mode, trace_path=str(path), pull_timeout_s=5.0)
    world.add(a_shadow_pull("s"))
    world.step()
    world.add(a_pull("call"), a_shadow_pull("t"))
    world.step()
    world.received, world.failed = {"s"}, {"s"}
    world.step()
    world.now_s += 6.0
    for _ in range(5):
        world.step()
    world.add(normal("n", 20))
    world.received = {"call"}
    world.run()
    world.scheduler.shutdown()
    trace = read_trace(path)
    seen = [
        (one.pull, one.phase, one.kv_class, one.normal_in_flight, one.shadow_in_flight, one.outcome)
        for one in trace.pulls
    ]
    assert seen == [
        ("s", "start", "shadow", 0, 0, ""),
        ("call", "start", "normal", 0, 1, ""),
        ("s", "end", "shadow", 0, 0, "failed"),
        ("call", "given_up", "normal", 0, 0, "timed_out"),
        ("call", "end", "normal", 0, 0, "done"),
    ]
    assert {one.tokens for one in trace.pulls} == {100}
    assert {one.peer for one in trace.pulls} == {"127.0.0.1:1"}
    assert all(one.size_bytes > 0 for one in trace.pulls)
    pulls = replay(trace.pulls)
    assert pulls.violations == []
    assert pulls.normal_behind_push == 1
