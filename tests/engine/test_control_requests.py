"""Control requests on vLLM's real schedulers: what changes between two steps, and what stays."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from vllm.v1.engine import FinishReason

from colocated.scheduler import ColocatedScheduler
from decode_node.scheduler import DecodeScheduler
from engine.control import control_xargs
from engine.exporter import families
from policy.vocabulary import Controller, Role
from tests.engine.scheduler_world import (
    World,
    a_request,
    normal,
    params,
    routed,
    scheduler_of,
    shadow,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.vllm_cpu


@pytest.fixture(params=["sync", "async"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def a_world(mode: str, **changes: Any) -> World:
    asynchronous = mode == "async"
    scheduler = scheduler_of(ColocatedScheduler, params(**changes), asynchronous=asynchronous)
    return World(scheduler, depth=2 if asynchronous else 1)


def tune(world: World, name: str, secret: str = "", **changes: object) -> Any:
    """What the request is answered with."""
    world.add(a_request(name, [1], None, **control_xargs("test", changes, secret)))
    world.step()
    if name not in world.finished:  # with a batch in flight, that one comes back first
        world.step()
    answer = world.finished[name]
    return answer.finish_reason, answer.stop_reason


def test_it_is_answered_at_once_and_computes_nothing(mode: str) -> None:
    world = a_world(mode)
    assert tune(world, "c", beta=0.25) == (FinishReason.STOP, "control_applied")
    assert world.scheduler.params.beta == 0.25
    assert world.emitted["c"] == 0
    assert world.run() == 0


def test_a_bad_field_changes_nothing_and_is_named(mode: str) -> None:
    world = a_world(mode)
    reason, text = tune(world, "c", controller="off", beta=7)
    assert reason is FinishReason.ABORT
    assert text == ("control_refused: beta must be `float` <= 1.0, got 7; nothing was changed")
    assert world.scheduler.params == params()
    assert world.scheduler.slack.params == params().slack_params()


def test_without_the_secret_it_is_refused(mode: str) -> None:
    world = a_world(mode, secret="ours")
    reason, text = tune(world, "c", controller="off")
    assert reason is FinishReason.ABORT
    assert "does not match" in str(text)
    assert tune(world, "d", secret="ours", controller="off")[1] == "control_applied"


def test_off_ends_hidden_jobs_and_refuses_new_ones_until_it_is_on_again(mode: str) -> None:
    world = a_world(mode)
    world.add(shadow("started", 500), shadow("waiting", 500))
    world.step()
    assert tune(world, "off", controller="off")[1] == "control_applied"
    world.add(shadow("late", 100))
    world.run()
    for name in ("started", "waiting", "late"):
        assert world.finished[name].stop_reason == "shadow_off"
    tokens = world.scheduler.shadow_stats.tokens
    assert tune(world, "on", controller="harvest-slo")[1] == "control_applied"
    world.add(shadow("again", 100))
    world.run()
    assert world.finished["again"].finish_reason is FinishReason.LENGTH
    assert world.scheduler.shadow_stats.tokens == tokens + 100


def test_eager_takes_later_shadow_requests_for_normal_ones_and_hidden_jobs_go_on(
    mode: str,
) -> None:
    world = a_world(mode)
    world.add(shadow("hidden", 300))
    world.step()
    tune(world, "eager", controller="eager")
    world.add(shadow("open", 100))
    assert "open" not in world.scheduler.shadows
    world.run()
    tune(world, "back", controller="harvest-slo")
    world.add(shadow("later", 100))
    assert "later" in world.scheduler.shadows
    world.run()
    for name in ("hidden", "open", "later"):
        assert world.finished[name].finish_reason is FinishReason.LENGTH


def test_credit_factors_and_jobs_outlive_a_change(mode: str) -> None:
    world = a_world(mode)
    world.add(routed("r", 32, "session", max_tokens=8), shadow("s", 5000 // 2))
    for _ in range(4):
        world.step()
    scheduler = world.scheduler
    credit_s, factor = scheduler.slack.credit_s, scheduler.step_time.base_factor
    missing = scheduler.shadows["s"].missing_tokens
    scheduler.add_request(
        a_request("c", [1], None, **control_xargs("test", {"max_chunk_tokens": 96}))
    )
    assert scheduler.slack.credit_s == credit_s
    assert scheduler.step_time.base_factor == factor
    assert scheduler.shadows["s"].missing_tokens == missing
    assert scheduler.slack.params.max_chunk_tokens == 96
    world.run()
    assert world.finished["s"].finish_reason is FinishReason.LENGTH


def test_a_new_chunk_size_holds_from_the_next_step_on() -> None:
    world = a_world("sync")
    world.scheduler.step_time.trusted_tokens = 1000
    world.add(normal("n", 32, max_tokens=10), shadow("s", 1000))
    world.step()
    assert world.step() == {"n": 1, "s": 64}
    world.add(a_request("c", [1], None, **control_xargs("test", {"max_chunk_tokens": 128})))
    assert world.step() == {"n": 1, "s": 128}


def test_a_smaller_cap_of_the_kv_pool_ends_the_job_that_fills_it() -> None:
    world = a_world("sync")
    world.add(shadow("s", 2000))
    for _ in range(20):
        world.step()
    assert tune(world, "c", kv_cap_share=0.02)[1] == "control_applied"
    assert world.scheduler.shadow_kv.cap_blocks == 40
    world.run()
    assert world.finished["s"].stop_reason == "truncated_by_cap"


def test_a_decode_instance_takes_the_change_and_says_what_has_no_effect() -> None:
    scheduler = scheduler_of(DecodeScheduler, params(role=Role.DECODE))
    world = World(scheduler)
    reason, text = tune(world, "c", beta=0.1, controller="off")
    assert reason is FinishReason.STOP
    assert text == "control_applied: without effect on a decode instance: beta"
    assert scheduler.params.controller is Controller.OFF
    assert "shadowprefill_engine_pulls" in {
        family.name for family in families(scheduler._reading())
    }


def test_a_scrape_tells_whose_each_kv_block_is_and_who_waits(mode: str) -> None:
    world = a_world(mode)
    world.add(shadow("s", 200))
    world.run()
    world.add(normal("n", 100, max_tokens=4))
    world.step()
    world.add(normal("later", 100))
    reading = world.scheduler._reading()
    pool = reading.pool
    assert pool.total_blocks == world.scheduler.kv_cache_manager.block_pool.num_gpu_blocks
    assert (pool.used_shadow_blocks, pool.cached_shadow_blocks > 0) == (0, True)
    held = world.scheduler.kv_cache_manager.get_blocks("n").blocks[0]
    assert pool.used_normal_blocks == len(held) + 1, "vLLM's null block is in use, too"
    assert reading.requests == {"running": 1, "waiting": 1}


def test_the_trace_tells_of_steps_arrivals_and_changes(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / "trace.jsonl"
    world = a_world(mode, trace_path=str(path))
    world.add(normal("n", 100, max_tokens=4), shadow("s", 300))
    world.run()
    tune(world, "c", controller="off")
    tune(world, "end", trace_path="")
    header, *lines = map(json.loads, path.read_text().splitlines())
    assert (header["kind"], header["version"], header["instance"]) == ("header", 1, "test")
    assert (header["cap_s"], header["idle_cap_s"], header["cap_blocks"]) == (50.0, 50.0, 500)
    steps = [line for line in lines if line["kind"] == "step"]
    assert sum(step.get("shadow_tokens", 0) for step in steps) == 300
    assert sum(step.get("prefill_tokens", 0) for step in steps) == 100
    assert sum(step.get("decode_tokens", 0) for step in steps) == 3
    assert sum(len(step.get("arrivals", [])) for step in steps) == 1
    assert [line["changes"] for line in lines if line.get("event") == "changed"] == [
        {"controller": "off"}
    ]
    assert lines[-1]["event"] == "end"
    assert lines[-1]["text"] == "switched off"


def test_a_trace_never_overwrites_what_is_none(tmp_path: Path) -> None:
    precious = tmp_path / "precious.jsonl"
    precious.write_text("{}\n")
    world = a_world("sync")
    reason, text = tune(world, "c", trace_path=str(precious), beta=0.1)
    assert reason is FinishReason.ABORT
    assert "is no trace: it is not overwritten; nothing was changed" in str(text)
    assert world.scheduler.params == params()
    assert precious.read_text() == "{}\n"
