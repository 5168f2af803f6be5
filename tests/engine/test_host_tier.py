"""The host tier beside vLLM's real schedulers: what is copied out comes back, as it was, and nobody
reads or overwrites a block that a copy still needs. The model and the copies are played."""

from __future__ import annotations

import random
from typing import Any

import pytest
from vllm.config import KVTransferConfig

from colocated.scheduler import ColocatedScheduler
from engine.kv_connectors import HOST_TIER_CONNECTOR, HOST_TIER_MODULE
from engine.params import StepTimeStart
from policy.host_tier import LoadReason
from policy.vocabulary import KvClass, RequestClass
from tests.engine.kv_runner import answer_to
from tests.engine.kv_watch import check_pool
from tests.engine.played import BLOCK, Played
from tests.engine.scheduler_world import params, prompt, scheduler_of
from tests.engine.tier_runner import TierRunner
from tests.engine.traffic import Arrival, Mix, Script

pytestmark = pytest.mark.vllm_cpu

STEP_TIME = StepTimeStart(
    fixed_s=0.001, s_per_request=0.0, s_per_token=0.0001, s_per_token_context=1e-8
)
BLOCK_BYTES = 128
"""Of the one layer that `scheduler_of` gives its model."""


def a_run(
    arrivals: dict[str, Arrival] | None = None,
    *,
    blocks: int = 41,
    tier_blocks: int = 1000,
    asynchronous: bool = False,
    seed: int = 0,
    bandwidth_bytes_per_s: float = 1e9,
    **engine_params: Any,
) -> Played:
    own = {"kv_cap_share": 0.9, "idle_age_s": 0.0, "n_min_tokens": 16, "step_time": STEP_TIME}
    tier = {
        "size_bytes": tier_blocks * BLOCK_BYTES,
        "bandwidth_bytes_per_s": bandwidth_bytes_per_s,
        "idle_age_s": 0.0,
    }
    scheduler = scheduler_of(
        ColocatedScheduler,
        params(**(own | engine_params)),
        asynchronous=asynchronous,
        blocks=blocks,
        kv_transfer_config=KVTransferConfig(
            kv_connector=HOST_TIER_CONNECTOR,
            kv_connector_module_path=HOST_TIER_MODULE,
            kv_role="kv_both",
            kv_connector_extra_config={
                "spec_name": "HostTierSpec",
                "spec_module_path": HOST_TIER_MODULE,
                "host_tier": tier,
            },
        ),
    )
    run = Played(
        scheduler,
        {} if arrivals is None else arrivals,
        STEP_TIME,
        depth=2 if asynchronous else 1,
        blocks=blocks,
        seed=seed,
        runner=TierRunner(scheduler, blocks, BLOCK, asynchronous=asynchronous, seed=seed),
    )
    scheduler.connector.manager._clock = lambda: run.now_s
    run.watch.append(lambda run, _output: tier_of(run).check())
    return run


def tier_of(run: Played) -> Any:
    return run.scheduler.connector.manager.tier


def counts_of(run: Played) -> Any:
    return run.scheduler.connector.manager.counts


def say(run: Played, name: str, text: list[int], **more: Any) -> list[int]:
    """A request, alone and to its end; what was answered."""
    fields = {"request_class": RequestClass.ROUTED, "max_tokens": 4, "session": name} | more
    run.arrivals[name] = Arrival(name=name, prompt=text, **fields)
    run.play([[run.arrivals[name]]])
    run.finish()
    return run.answers.get(name, [])


def shadow(run: Played, name: str, text: list[int]) -> None:
    say(run, name, text, request_class=RequestClass.SHADOW, max_tokens=1)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def asynchronous(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_an_evicted_session_comes_back_with_what_was_generated(asynchronous: bool) -> None:
    run = a_run(asynchronous=asynchronous)
    text = prompt(300, seed=1)
    answer = say(run, "first", text, max_tokens=60)
    for other in range(3):
        say(run, f"other{other}", prompt(500, seed=2 + other))
    assert counts_of(run).loaded == 0
    again = text + answer + prompt(40, seed=9)
    assert say(run, "again", again) == answer_to(again, 4)
    # 359 tokens of the first call are whole blocks but for the last ones.
    assert counts_of(run).loaded == 359 // BLOCK
    assert run.scheduler.connector.hits == dict.fromkeys(LoadReason, 0) | {LoadReason.LOADED: 1}


def test_what_is_computed_sooner_than_copied_is_computed() -> None:
    slow = a_run(bandwidth_bytes_per_s=1.0)
    few = a_run(step_time=StepTimeStart(**(_fields(STEP_TIME) | {"fixed_s": 1.0})))
    for run, reason in ((slow, LoadReason.LINK_TOO_SLOW), (few, LoadReason.TOO_FEW_TOKENS)):
        text = prompt(300, seed=1)
        say(run, "first", text)
        for other in range(3):
            say(run, f"other{other}", prompt(500, seed=2 + other))
        assert say(run, "again", [*text, 7]) == answer_to([*text, 7], 4)
        assert counts_of(run).loaded == 0
        assert run.scheduler.connector.hits[reason] > 0


def _fields(step_time: StepTimeStart) -> dict[str, float]:
    return {name: getattr(step_time, name) for name in step_time.__struct_fields__}


def test_a_shadow_is_stored_and_its_call_has_it_back(asynchronous: bool) -> None:
    run = a_run(asynchronous=asynchronous)
    text = prompt(320, seed=1)
    shadow(run, "shadow", text)
    assert tier_of(run).entries(KvClass.SHADOW) == 320 // BLOCK
    for other in range(3):
        say(run, f"other{other}", prompt(500, seed=2 + other))
    call = text + prompt(30, seed=8)
    assert say(run, "call", call) == answer_to(call, 4)
    assert counts_of(run).loaded == 320 // BLOCK
    assert tier_of(run).entries(KvClass.SHADOW) == 0
    assert tier_of(run).promotions == 320 // BLOCK


def an_evicted_session(run: Played, tokens: int) -> list[int]:
    text = prompt(tokens, seed=1)
    say(run, "first", text)
    for other in range(3):
        say(run, f"other{other}", prompt(500, seed=2 + other))
    return text


def test_a_shadow_whose_prefix_was_evicted_has_it_copied_back_and_computes_the_rest(
    asynchronous: bool,
) -> None:
    run = a_run(asynchronous=asynchronous)
    text = an_evicted_session(run, 400) + prompt(60, seed=8)
    shadow(run, "shadow", text)
    assert run.finished["shadow"].finish_reason.name == "LENGTH"
    assert counts_of(run).loaded == 400 // BLOCK
    assert run.scheduler.shadow_stats.tokens == 60
    call = text + prompt(20, seed=9)
    assert say(run, "call", call) == answer_to(call, 4)
    assert counts_of(run).loaded == 400 // BLOCK


def test_a_shadow_computes_what_cannot_be_copied_within_an_iteration(asynchronous: bool) -> None:
    """Its chunks are shorter than what the tier holds, and vLLM loads that as a whole."""
    run = a_run(asynchronous=asynchronous, bandwidth_bytes_per_s=1e5, iteration_cap_s=0.02)
    text = an_evicted_session(run, 400)
    shadow(run, "shadow", text + prompt(60, seed=8))
    assert run.finished["shadow"].finish_reason.name == "LENGTH"
    assert counts_of(run).loaded == 0
    assert run.scheduler.shadow_stats.tokens >= 400
    call = text + prompt(10, seed=9)
    say(run, "other", prompt(620, seed=5))
    assert say(run, "call", call) == answer_to(call, 4)
    assert counts_of(run).loaded > 0, "of a call it is copied all the same"


def test_a_call_waits_for_no_shadow_that_is_being_loaded(asynchronous: bool) -> None:
    run = a_run(asynchronous=asynchronous)
    text = an_evicted_session(run, 400)
    run.runner.copies._late = 1.0
    job = Arrival(name="job", prompt=text, request_class=RequestClass.SHADOW, session="s")
    call = Arrival(
        name="call",
        prompt=prompt(100, seed=9),
        request_class=RequestClass.ROUTED,
        session="s",
        max_tokens=3,
    )
    run.arrivals |= {"job": job, "call": call}
    run.play([[job], [], [], []])
    assert run.scheduler.shadows["job"].loading
    run.play([[call], *([] for _ in range(8))])
    assert run.answers["call"] == answer_to(call.prompt, 3)
    assert run.finished["job"].finish_reason.name == "ABORT"
    assert "job" in run.scheduler.requests  # its blocks are still written to
    run.runner.copies._late = 0.0
    run.finish()
    check_pool(run)


def test_a_shadow_is_loaded_only_where_the_class_has_room_for_all_of_it() -> None:
    run = a_run(kv_cap_share=0.5)
    text = an_evicted_session(run, 400)
    shadow(run, "shadow", text)
    assert counts_of(run).loaded == 0
    check_pool(run)


def test_a_full_tier_gives_up_shadow_entries_first_and_refuses_nobody() -> None:
    run = a_run(tier_blocks=40)
    call, late = prompt(20 * BLOCK, seed=1), prompt(20 * BLOCK, seed=3)
    say(run, "call", call, max_tokens=1)
    shadow(run, "shadow", prompt(20 * BLOCK, seed=2))
    assert tier_of(run).entries(KvClass.SHADOW) == 20
    say(run, "late", late, max_tokens=1)
    assert tier_of(run).evictions == {KvClass.SHADOW: 20, KvClass.NORMAL: 0}
    say(run, "later", prompt(10 * BLOCK, seed=4), max_tokens=1)
    assert tier_of(run).evictions == {KvClass.SHADOW: 20, KvClass.NORMAL: 10}
    assert counts_of(run).refused == 0


def test_a_tier_smaller_than_a_prompt_keeps_its_head() -> None:
    run = a_run(tier_blocks=10)
    text = prompt(20 * BLOCK, seed=1)
    assert say(run, "call", text) == answer_to(text, 4)
    assert tier_of(run).entries(KvClass.NORMAL) == 10
    assert counts_of(run).refused >= 10
    say(run, "other", prompt(20 * BLOCK, seed=2), request_class=RequestClass.NORMAL)
    assert say(run, "again", text) == answer_to(text, 4)


def test_whoever_takes_a_block_that_is_not_copied_yet_waits_for_the_copy(
    asynchronous: bool,
) -> None:
    run = a_run(asynchronous=asynchronous)
    run.runner.copies._late = 1.0  # nothing is copied unless somebody waits for it
    text = prompt(500, seed=1)
    run.arrivals["a"] = Arrival(
        name="a", prompt=text, request_class=RequestClass.NORMAL, max_tokens=1
    )
    run.play([[run.arrivals["a"]], *([] for _ in range(20))])
    other = Arrival(
        name="b", prompt=prompt(600, seed=2), request_class=RequestClass.NORMAL, max_tokens=1
    )
    run.arrivals["b"] = other
    run.play([[other], *([] for _ in range(20))])
    assert run.scheduler.connector.hurried_stores > 0
    run.runner.copies._late = 0.0
    run.finish()
    assert say(run, "again", text) == answer_to(text, 4)
    assert counts_of(run).loaded > 0


def test_an_emptied_tier_gives_nothing_back() -> None:
    run = a_run()
    text = prompt(300, seed=1)
    say(run, "first", text)
    assert run.scheduler.reset_prefix_cache(reset_connector=True)
    assert say(run, "again", text) == answer_to(text, 4)
    assert counts_of(run).loaded == 0


@pytest.mark.parametrize("tier_blocks", [12, 60, 2000], ids=["scarce", "small", "ample"])
@pytest.mark.parametrize("seed", range(8))
def test_random_traffic_over_a_tier_says_what_the_model_says(seed: int, tier_blocks: int) -> None:
    chance = random.Random(seed * 7919 + tier_blocks)
    script = Script(
        seed,
        Mix(
            iterations=200,
            shared=True,
            reset=0.0,  # vLLM itself cannot empty a pool while something is being loaded
            longest_prompt=chance.choice([50, 300]),
            longest_answer=chance.choice([30, 90]),
        ),
    )
    run = a_run(
        script.arrivals(),
        blocks=chance.choice([50, 65, 90]),
        tier_blocks=tier_blocks,
        asynchronous=seed % 2 == 1,
        seed=seed,
        slo_ttft_s=chance.choice([0.3, 5.0]),
        slo_tpot_s=0.06,
        max_chunk_tokens=chance.choice([48, 256]),
        kv_cap_share=chance.choice([0.25, 0.5, 1.0]),
        shadow_timeout_s=4.0,
    )
    run.watch.append(lambda run, _output: run.scheduler.shadow_queue.check())
    run.play(script.iterations)
    run.finish()
    left = script.left()
    for name, arrival in run.arrivals.items():
        if name not in run.finished:
            assert name in left, f"{name} was never answered"
        elif not run.is_shadow(name) and run.finished[name].finish_reason.name != "ABORT":
            assert run.answers[name] == answer_to(arrival.prompt, arrival.max_tokens), name
    assert not run.scheduler.requests
    assert run.free_blocks() == run.blocks - 1
    check_pool(run)
    assert counts_of(run).stored > 0
    if tier_blocks == 2000:
        assert counts_of(run).loaded > 0
    else:
        assert sum(tier_of(run).evictions.values()) > 0
