"""Shadow work in a simulated cluster, computed by hand: two models A (Llama) and B (Gemma), a
session or two, a few iterations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.sim.approach import Approach, Credit, Evicts, Predicts
from bench.sim.build import RoutedWork, Workload
from bench.sim.simulation import Simulation
from policy.slack import Accrual
from policy.vocabulary import Controller
from tests.bench.sim.builders import (
    GEMMA,
    LLAMA,
    Case,
    a_session,
    colocated,
    lasts,
    most_tokens,
    requests,
)

SLO = Approach(controller=Controller.HARVEST_SLO)
CAP_S = 0.5 * GEMMA.tpot_slo_s()
A, B = 0, 1


def a_switch(arrival_s: float = 0.0, first_tokens: int = 1000) -> RoutedWork:
    """A call of A, and much later one of B; the history is 1,010 tokens, of which 63 blocks of 16
    can be cached."""
    calls = ((0, first_tokens, 10, 0.0), (first_tokens + 10, 100, 5, 10.0))
    return RoutedWork(a_session(*calls, arrival_s=arrival_s), (A, B))


def test_an_idle_instance_computes_the_history_in_capped_iterations() -> None:
    outcome = Case(colocated(LLAMA, GEMMA), (a_switch(),)).run(SLO)
    first = most_tokens(GEMMA, CAP_S, 0, 992)
    second = most_tokens(GEMMA, CAP_S, first, 992 - first)
    assert 256 < first < 992
    assert second > 0
    parts = [(first, 0), (second, first), (16, 992)]
    call_s = lasts(GEMMA, (), (102, 1008))
    rest_s = sum(lasts(GEMMA, (tokens,)) for tokens in range(1111, 1115))
    busy_s = sum(lasts(GEMMA, (), part) for part in parts) + call_s + rest_s
    assert outcome.cached_tokens.tolist() == outcome.shadow_tokens.tolist() == [0, 1008]
    assert outcome.ttft_s[1] == pytest.approx(call_s, rel=1e-9)
    assert outcome.instances.busy_s[B] == pytest.approx(busy_s, rel=1e-9)
    assert outcome.instances.shadow_computed_tokens.tolist()[B] == 1008
    assert outcome.instances.shadow_unused_tokens.tolist()[B] == 0


def test_without_shadows_a_switch_is_cold_and_with_an_oracle_it_is_free() -> None:
    case = Case(colocated(LLAMA, GEMMA), (a_switch(),))
    cold, free = case.run(), case.run(Approach(oracle=True))
    assert cold.cached_tokens.tolist() == [0, 0]
    assert cold.ttft_s[1] == pytest.approx(lasts(GEMMA, (), (1110, 0)), rel=1e-9)
    assert free.cached_tokens.tolist() == free.oracle_tokens.tolist() == [0, 1008]
    assert free.ttft_s[1] == pytest.approx(lasts(GEMMA, (), (102, 1008)), rel=1e-9)
    assert free.instances.shadow_computed_tokens.sum() == 0


def test_a_request_waits_for_one_capped_iteration_and_lends_its_slack() -> None:
    """It arrives as the idle instance begins, and its prompt shares the next iteration."""
    case = Case(
        colocated(LLAMA, GEMMA), (a_switch(first_tokens=3008),), (None, requests((0.0, 100, 3)))
    )
    outcome = case.run(SLO)
    first = most_tokens(GEMMA, CAP_S, 0, 2048)
    waited_s = lasts(GEMMA, (), (first, 0))
    assert waited_s <= CAP_S
    assert outcome.admitted_s[0] == pytest.approx(waited_s, rel=1e-9)
    second = most_tokens(GEMMA, CAP_S, first, 3008 - first, (), (100, 0))
    both_s = waited_s + lasts(GEMMA, (), (100, 0), (second, first))
    assert outcome.first_token_s[0] == pytest.approx(both_s, rel=1e-9)
    # A token is due 0.9 TPOT after the first, which is later than the cap.
    done = first + second
    third = most_tokens(GEMMA, CAP_S, done, 3008 - done, (101,))
    decoded_s = both_s + lasts(GEMMA, (101,), (third, done))
    assert outcome.tpot_s[0] <= GEMMA.tpot_slo_s()
    assert decoded_s < outcome.finished_s[0]


def test_a_request_without_slack_blocks_shadow_work() -> None:
    """With a margin of all but nothing of its SLO, each token is due at once."""
    case = Case(colocated(LLAMA, GEMMA), (a_switch(),), (None, requests((0.0, 100, 200))))
    lends, blocks = case.run(SLO), case.run(Approach(controller=SLO.controller, margin=0.9))
    assert lends.tpot_s[0] > blocks.tpot_s[0]
    # The iteration that was under way when the request came, and those after it.
    first = most_tokens(GEMMA, CAP_S, 0, 992)
    assert blocks.admitted_s[0] == pytest.approx(lasts(GEMMA, (), (first, 0)), rel=1e-9)
    alone_s = sum(lasts(GEMMA, (tokens,)) for tokens in range(101, 300))
    assert blocks.finished_s[0] - blocks.first_token_s[0] == pytest.approx(alone_s, rel=1e-9)


def a_protected_call() -> Case:
    """A call decodes 400 tokens on B while another session on A wants its shadow there."""
    routed = RoutedWork(a_session((0, 500, 400, 0.0)), (B,))
    return Case(colocated(LLAMA, GEMMA), (routed, a_switch(arrival_s=0.05)))


def test_without_credit_a_routed_call_is_not_stretched() -> None:
    case = a_protected_call()
    alone, shadowed = case.run(), case.run(Approach(controller=SLO.controller, delta=0))
    assert shadowed.finished_s[0] == alone.finished_s[0]
    assert shadowed.instances.shadow_computed_tokens[B] > 0  # once the call is over


@pytest.mark.parametrize(
    ("switches", "told", "is_stretched"),
    [
        ({"delta": 0.1}, (), True),
        ({"delta": 0.002}, (), True),
        # What was saved is never enough for so many tokens.
        ({"delta": 0.002, "n_min_tokens": 900}, (), False),
        # All that was saved in the end is less than one iteration.
        ({"delta": 0.002, "credit": Credit.TOTAL}, (), False),
        ({"delta": 0.1, "controller": Controller.HARVEST}, (), True),
        ({"delta": 0.1, "controller": Controller.PREDICTIVE}, (), True),
        ({"delta": 0.1, "controller": Controller.PREDICTIVE}, (0.9, 0.1), False),
    ],
)
def test_credit_stretches_a_routed_call_by_delta_at_most(
    switches: dict[str, Any], told: tuple[float, ...], is_stretched: bool
) -> None:
    case = a_protected_call()
    if told:
        switched = case.sessions[1]._replace(told=(told, told))
        case = case._replace(sessions=(case.sessions[0], switched))
    alone = case.run()
    stretched = case.run(Approach(**{"controller": SLO.controller, "n_min_tokens": 1} | switches))
    share = stretched.latency_s[0] / alone.latency_s[0] - 1
    assert bool(share > 0) is is_stretched
    assert share <= switches["delta"] + CAP_S / alone.latency_s[0]


def test_credit_of_any_iteration_is_more_than_of_routed_ones() -> None:
    """Normal decodes alone earn for a routed call that comes later."""
    traffic = (None, requests((0.0, 100, 150)))
    routed = RoutedWork(a_session((0, 500, 100, 0.0), arrival_s=0.5), (B,))
    case = Case(colocated(LLAMA, GEMMA), (routed, a_switch(arrival_s=0.6)), traffic)
    found = {
        accrual: case.run(Approach(controller=SLO.controller, accrual=accrual, n_min_tokens=1))
        for accrual in Accrual
    }
    ours, paper = found[Accrual.ROUTED], found[Accrual.ANY]
    assert paper.latency_s[1] > ours.latency_s[1]


def test_a_job_ends_where_its_class_is_full() -> None:
    approach = Approach(controller=SLO.controller, kv_cap_share=0.004)
    cap = int(GEMMA.kv_pool_tokens * 0.004)
    assert cap == 499
    outcome = Case(colocated(LLAMA, GEMMA), (a_switch(),)).run(approach)
    assert outcome.shadow_tokens[1] == outcome.instances.shadow_computed_tokens[B] == 496


def test_shadow_entries_go_before_normal_ones_however_young() -> None:
    """A request fills B but for 900 tokens; the other session's own context is older than the
    shadow, and stays. Its next call takes 854 of them, and leaves the shadow the rest."""
    size = GEMMA.kv_pool_tokens - 900
    own = RoutedWork(a_session((0, 800, 2, 0.0), (802, 50, 2, 30.0)), (B, B))
    shadow = RoutedWork(a_session((0, 1000, 10, 0.0), (1010, 100, 5, 30.0), arrival_s=1.0), (A, B))
    traffic = (None, requests((10.0, size - 2, 2)))
    outcome = Case(colocated(LLAMA, GEMMA), (own, shadow), traffic).run(SLO)
    assert outcome.cached_tokens.tolist() == [0, 0, 800, 0, (900 - 854) // 16 * 16]


def test_shadow_work_displaces_only_what_has_been_idle() -> None:
    """B is full of a finished request; its entry may go once it is five seconds old."""
    traffic = (None, requests((0.0, GEMMA.kv_pool_tokens - 2, 2)))
    end_s = Case(colocated(LLAMA, GEMMA), (), traffic).run().finished_s[0]
    for wait_s, shadowed in ((4.5, 0), (8.0, 1008)):
        session = a_session((0, 1000, 10, 0.0), (1010, 100, 5, wait_s), arrival_s=end_s)
        case = Case(colocated(LLAMA, GEMMA), (RoutedWork(session, (A, B)),), traffic)
        assert case.run(SLO).shadow_tokens.tolist() == [0, 0, shadowed]


def test_a_finished_request_that_is_not_kept_leaves_its_room() -> None:
    traffic = (None, requests((0.0, GEMMA.kv_pool_tokens - 2, 2)))
    end_s = Case(colocated(LLAMA, GEMMA), (), traffic).run().finished_s[0]
    session = a_session((0, 1000, 10, 0.0), (1010, 100, 5, 4.5), arrival_s=end_s)
    cluster = replace(colocated(LLAMA, GEMMA), keeps_finished=False)
    case = Case(cluster, (RoutedWork(session, (A, B)),), traffic)
    assert case.run(SLO).shadow_tokens.tolist() == [0, 0, 1008]


@pytest.mark.parametrize(
    ("evicts", "shadowed"), [(Evicts.SHADOW_FIRST, 0), (Evicts.COLD_FIRST, 1008)]
)
def test_a_request_takes_a_shadow_or_what_the_shadow_itself_may_displace(
    evicts: Evicts, shadowed: int
) -> None:
    """B is full of an old entry, and the shadow takes a part of its place. So does the request that
    comes 8 s later: of the shadow, or of the rest of the old entry."""
    size = GEMMA.kv_pool_tokens - 2
    end_s = Case(colocated(LLAMA, GEMMA), (), (None, requests((0.0, size, 2)))).run().finished_s[0]
    session = a_session((0, 1000, 10, 0.0), (1010, 100, 5, 12.0), arrival_s=end_s)
    traffic = (None, requests((0.0, size, 2), (end_s + 8.0, 3000, 2)))
    case = Case(colocated(LLAMA, GEMMA), (RoutedWork(session, (A, B)),), traffic)
    outcome = case.run(replace(SLO, evicts=evicts))
    assert outcome.shadow_tokens.tolist() == [0, 0, 0, shadowed]


def test_what_is_foreseen_of_a_chunk_may_leave_out_the_context_it_reads() -> None:
    """Then every chunk is as large as the first one, and the later ones take longer than the cap;
    else they shrink as the context grows."""
    big = RoutedWork(a_session((0, 4096, 16, 0.0), (4112, 100, 5, 10.0)), (A, B))
    alone = most_tokens(GEMMA, CAP_S, 0, 2048)
    for predicts, second in (
        (Predicts.TOKENS, alone),
        (Predicts.CONTEXT, most_tokens(GEMMA, CAP_S, alone, 2048)),
    ):
        case = Case(colocated(LLAMA, GEMMA), (big,))
        simulation = Simulation(
            case.cluster, Workload(sessions=case.sessions), replace(SLO, predicts=predicts),
            with_numba=False,
        )  # fmt: skip
        sizes, at_s = [], 0.0
        while len(sizes) < 2:
            at_s += 1e-3
            simulation.run(at_s)
            done = int(simulation.world.instances[B].shadow_computed_tokens)
            if done > sum(sizes):
                sizes.append(done - sum(sizes))
        assert sizes == [alone, second]
        assert (second == alone) is (predicts is Predicts.TOKENS)


def test_after_a_compaction_the_job_starts_again() -> None:
    calls = ((0, 1000, 10, 0), (0, 600, 10, 1.0), (610, 100, 5, 1.0))
    outcome = Case(colocated(LLAMA, GEMMA), (RoutedWork(a_session(*calls), (A, A, B)),)).run(SLO)
    assert outcome.shadow_tokens.tolist() == [0, 0, 608]
    assert outcome.instances.shadow_computed_tokens[B] == 1008 + 608


def test_coming_back_only_the_difference_is_computed() -> None:
    calls = ((0, 1000, 10, 0), (1010, 100, 10, 1.0), (1120, 100, 10, 1.0))
    outcome = Case(colocated(LLAMA, GEMMA), (RoutedWork(a_session(*calls), (A, B, A)),)).run(SLO)
    # A holds 1,009 tokens of its own call, of which 63 blocks count; of 1,120 70 blocks.
    assert outcome.cached_tokens.tolist() == [0, 1008, 1120]
    assert outcome.instances.shadow_computed_tokens.tolist()[A] == 1120 - 1009
    assert outcome.shadow_tokens.tolist() == [0, 1008, 1120 - 1009]


def test_a_long_output_is_shadowed_while_it_is_generated() -> None:
    """1,024 tokens at a time: at the end of the call the rest is short."""
    calls = ((0, 200, 3000, 0.0), (3200, 50, 5, 0.05))
    case = Case(colocated(LLAMA, GEMMA), (RoutedWork(a_session(*calls), (A, B)),))
    grown = case.run(SLO)
    at_the_end = case.run(Approach(controller=SLO.controller, resubmit_tokens=3000))
    assert grown.shadow_tokens[1] > at_the_end.shadow_tokens[1] + 1000


def test_eager_shadows_are_served_in_order_of_arrival() -> None:
    """The request comes after the job and before there is room for it."""
    big = a_switch(first_tokens=6000)
    case = Case(colocated(LLAMA, GEMMA), (big,), (None, requests((0.001, 100, 3))))
    outcome = case.run(Approach(controller=Controller.EAGER, segment_tokens=8192))
    first_s = lasts(GEMMA, (), (2048, 0)) + lasts(GEMMA, (), (2048, 2048))
    both_s = first_s + lasts(GEMMA, (), (100, 0), (6000 - 4096, 4096))
    assert outcome.first_token_s[0] == pytest.approx(both_s, rel=1e-9)


def test_a_whole_request_once_begun_goes_on_before_those_that_wait() -> None:
    big = a_switch(first_tokens=6000)
    case = Case(colocated(LLAMA, GEMMA), (big,), (None, requests((0.001, 100, 3))))
    outcome = case.run(Approach(controller=Controller.REQUEST, segment_tokens=8192))
    first_s = lasts(GEMMA, (), (2048, 0)) + lasts(GEMMA, (), (2048, 2048))
    both_s = first_s + lasts(GEMMA, (), (100, 0), (6000 - 4096, 4096))
    assert outcome.first_token_s[0] == pytest.approx(both_s, rel=1e-9)
    # With the request there first, it is not begun at all.
    early = case._replace(
        normal=(None, requests((0.0, 100, 3))), sessions=(a_switch(0.0001, 6000),)
    )
    outcome = early.run(Approach(controller=Controller.REQUEST, segment_tokens=8192))
    assert outcome.first_token_s[0] == pytest.approx(lasts(GEMMA, (), (100, 0)), rel=1e-9)


def test_a_shadow_is_used_once() -> None:
    calls = ((0, 1000, 10, 0), (1010, 100, 10, 5.0), (1120, 100, 10, 5.0))
    outcome = Case(colocated(LLAMA, GEMMA), (RoutedWork(a_session(*calls), (A, B, B)),)).run(SLO)
    assert outcome.shadow_tokens.tolist() == [0, 1008, 0]
    assert outcome.cached_tokens[2] > 1008
