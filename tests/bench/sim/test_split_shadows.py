"""Shadow work on a split cluster, computed by hand."""

from __future__ import annotations

import itertools

import pytest

from bench.sim.approach import Approach
from bench.sim.build import RoutedWork, Workload
from bench.sim.conservation import check
from bench.sim.rows import NONE
from bench.sim.simulation import Simulation
from policy.vocabulary import Controller
from tests.bench.sim.builders import (
    GEMMA,
    LLAMA,
    Case,
    a_session,
    lasts,
    most_tokens,
    requests,
    split,
)

SLO = Approach(controller=Controller.HARVEST_SLO)
TOKEN_S = GEMMA.kv_transfer_s(1, 50e9)
P, D = 2, 3
"""The instances of B."""


def a_switch(first_tokens: int = 1000, gap_s: float = 10.0, arrival_s: float = 0.0) -> RoutedWork:
    calls = ((0, first_tokens, 10, 0.0), (first_tokens + 10, 100, 5, gap_s))
    return RoutedWork(a_session(*calls, arrival_s=arrival_s), (0, 1))


def test_prefill_computes_it_and_decode_has_it_before_the_switch() -> None:
    outcome = Case(split(LLAMA, GEMMA), (a_switch(),)).run(SLO)
    assert outcome.cached_tokens.tolist() == outcome.shadow_tokens.tolist() == [0, 1008]
    assert outcome.moved_tokens.tolist() == [1000, 1110 - 1008]
    assert outcome.instances.pushed_tokens[D] == 1008
    assert outcome.ttft_s[1] == pytest.approx(lasts(GEMMA, (), (102, 1008)), rel=1e-9)
    waited_s = outcome.transfer_end_s[1] - outcome.first_token_s[1]
    assert waited_s == pytest.approx(102 * TOKEN_S, rel=1e-9)


def test_an_oracle_moves_only_the_new_input() -> None:
    outcome = Case(split(LLAMA, GEMMA), (a_switch(),)).run(Approach(oracle=True))
    assert outcome.cached_tokens.tolist() == [0, 1008]
    assert outcome.moved_tokens.tolist() == [1000, 1110 - 1008]


def test_a_prefill_iteration_is_capped_by_itself_and_not_by_a_token_time() -> None:
    outcome = Case(split(LLAMA, GEMMA), (a_switch(first_tokens=8192),)).run(SLO)
    first = most_tokens(GEMMA, SLO.iteration_cap_s, 0, 2048)
    assert lasts(GEMMA, (), (first, 0)) > 0.5 * GEMMA.tpot_slo_s()
    assert outcome.shadow_tokens[1] == 8192


def test_no_shadow_joins_a_routed_prompt_on_a_prefill_instance() -> None:
    routed = RoutedWork(a_session((0, 6000, 2, 0.0)), (1,))
    case = Case(split(LLAMA, GEMMA), (routed, a_switch()))
    assert case.run(SLO).ttft_s[0] == case.run().ttft_s[0]


def test_a_normal_prompt_lends_its_slack_on_a_prefill_instance() -> None:
    traffic = (None, requests((0.0, 100, 2)))
    outcome = Case(split(LLAMA, GEMMA), (a_switch(first_tokens=4000),), traffic).run(SLO)
    first = most_tokens(GEMMA, SLO.iteration_cap_s, 0, 2048)
    second = most_tokens(GEMMA, SLO.iteration_cap_s, first, 1948, (), (100, 0))
    both_s = lasts(GEMMA, (), (first, 0)) + lasts(GEMMA, (), (100, 0), (second, first))
    assert outcome.first_token_s[0] == pytest.approx(both_s, rel=1e-9)


def run_to(case: Case, until_s: float, approach: Approach = SLO) -> tuple[Simulation, int]:
    workload = Workload(normal=case.normal, sessions=case.sessions)
    simulation = Simulation(case.cluster, workload, approach, with_numba=False)
    outcome = simulation.run(until_s)
    check(simulation)
    return simulation, int(outcome.instances.pushed_tokens[D])


def pushed_at(case: Case, *, step_s: float, end_s: float) -> list[int]:
    return [run_to(case, step * step_s)[1] for step in range(int(end_s / step_s))]


def test_a_push_carries_so_many_tokens_at_most() -> None:
    case = Case(split(LLAMA, GEMMA), (a_switch(first_tokens=8192),))
    grown = sorted(set(pushed_at(case, step_s=0.004, end_s=1.2)))
    assert grown[-1] == 8192
    assert max(b - a for a, b in itertools.pairwise(grown)) <= 4096


def test_a_push_waits_for_normal_transfers_and_they_for_one_push() -> None:
    """On a link of 1 GB/s a prompt of 8,000 tokens takes 3.7 s; the shadow is computed meanwhile.
    The second request is ready to be moved while the push runs."""
    cluster = split(LLAMA, GEMMA, link_bytes_per_s_per_gpu=1_000_000_000)
    token_s = GEMMA.kv_transfer_s(1, 1e9)
    case = Case(cluster, (a_switch(arrival_s=1.0),), (None, requests((0.0, 8000, 2))))
    free_s = case.run(SLO).transfer_end_s[0]
    assert free_s > 3.6
    before, after = (run_to(case, free_s + late_s)[0] for late_s in (-0.01, 0.01))
    assert before.world.instances[D].push_job == NONE
    assert after.world.instances[D].push_tokens == 1008
    late = requests((0.0, 8000, 2), (free_s + 0.05, 100, 2))
    outcome = case._replace(normal=(None, late)).run(SLO)
    assert outcome.first_token_s[1] < free_s + 1008 * token_s
    assert outcome.transfer_end_s[1] == pytest.approx(free_s + 1108 * token_s, rel=1e-9)


def test_decode_memory_of_shadows_is_reclaimed_first() -> None:
    room = GEMMA.kv_pool_tokens
    traffic = (None, requests((5.0, room - 2, 2)))
    outcome = Case(split(LLAMA, GEMMA), (a_switch(gap_s=60.0),), traffic).run(SLO)
    assert outcome.instances.pushed_tokens[D] == 1008
    # All of it went, on both instances.
    assert outcome.moved_tokens[2] == 1110
    assert outcome.cached_tokens[2] == 0
