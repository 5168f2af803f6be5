"""What spills to the host and what comes back, computed by hand."""

from __future__ import annotations

import pytest

from bench.sim.approach import Approach, HostTier
from bench.sim.build import RoutedWork, Workload
from bench.sim.kv_cache import reached_tokens
from bench.sim.simulation import Simulation
from policy.vocabulary import Controller
from tests.bench.sim.builders import GEMMA, LLAMA, Case, a_session, colocated, lasts, requests

TIER = HostTier()
HOST = Approach(host_tier=TIER)
TOKEN_S = GEMMA.kv_transfer_s(1, TIER.bytes_per_s_per_gpu)
POOL = GEMMA.kv_pool_tokens
LEFT = 100_000 - (60_010 - (POOL - 100_000))
"""Of the session's context, once a request of 60,010 tokens has come."""


def an_evicted_context() -> Case:
    session = a_session((0, 100_000, 1, 0), (100_001, 100, 1, 1000.0))
    return Case(colocated(GEMMA), (RoutedWork(session, (0, 0)),), (requests((500.0, 60_000, 10)),))


def test_an_evicted_tail_comes_back_before_the_rest_is_computed() -> None:
    outcome = an_evicted_context().run(HOST)
    assert outcome.cached_tokens.tolist() == [0, 0, 100_000]
    assert outcome.host_tokens.tolist() == [0, 0, 100_000 - LEFT]
    moved_s = (100_000 - LEFT) * TOKEN_S
    assert outcome.ttft_s[2] == pytest.approx(moved_s + lasts(GEMMA, (), (101, 100_000)), rel=1e-9)
    assert outcome.instances.spilled_tokens[0] == 100_000 - LEFT
    assert outcome.instances.restored_tokens[0] == 100_000 - LEFT


def test_what_does_not_fit_the_host_is_computed_again() -> None:
    """The host keeps the front of what spilled, which joins on."""
    room = 10_000
    tier = HostTier(bytes_per_gpu=room * GEMMA.kv_bytes_per_token)
    outcome = an_evicted_context().run(Approach(host_tier=tier))
    held = (LEFT + room) // 16 * 16
    assert outcome.cached_tokens.tolist() == [0, 0, held]
    assert outcome.host_tokens[2] == held - LEFT


def test_others_run_while_a_context_comes_back() -> None:
    case = an_evicted_context()
    back_s = case.run(HOST).arrival_s[2]
    traffic = requests((500.0, 60_000, 10), (back_s + 0.001, 100, 1))
    outcome = case._replace(normal=(traffic,)).run(HOST)
    assert outcome.ttft_s[1] == pytest.approx(lasts(GEMMA, (), (100, 0)), rel=1e-9)
    assert outcome.ttft_s[1] < outcome.ttft_s[3] - outcome.ttft_s[1]


def test_requests_of_normal_traffic_do_not_spill() -> None:
    traffic = (requests((0.0, 100_000, 2), (500.0, 60_000, 2)),)
    outcome = Case(colocated(GEMMA), (), traffic).run(HOST)
    assert outcome.instances.spilled_tokens.tolist() == [0]
    assert outcome.instances.evicted_tokens[0] > 0


def test_an_evicted_shadow_comes_back_too() -> None:
    session = a_session((0, 1000, 10, 0.0), (1010, 100, 5, 60.0))
    traffic = (None, requests((10.0, POOL - 2, 2)))
    case = Case(colocated(LLAMA, GEMMA), (RoutedWork(session, (0, 1)),), traffic)
    lost = case.run(Approach(controller=Controller.HARVEST_SLO))
    kept = case.run(Approach(controller=Controller.HARVEST_SLO, host_tier=TIER))
    assert lost.cached_tokens.tolist() == [0, 0, 0]
    assert kept.host_tokens.tolist() == kept.shadow_tokens.tolist() == [0, 0, 1008]


def test_a_job_fetches_what_the_host_has_of_its_prefix() -> None:
    """The shadow of the first call spilled; the second call's continues it."""
    calls = ((0, 1000, 10, 0.0), (1010, 500, 10, 60.0), (1520, 100, 5, 60.0))
    traffic = (None, requests((10.0, POOL - 2, 2)))
    case = Case(colocated(LLAMA, GEMMA), (RoutedWork(a_session(*calls), (0, 0, 1)),), traffic)
    outcome = case.run(Approach(controller=Controller.HARVEST_SLO, host_tier=TIER))
    assert outcome.instances.shadow_computed_tokens[1] == 1520
    assert outcome.instances.restored_tokens[1] == 1008
    assert outcome.shadow_tokens[3] == 1520
    assert outcome.host_tokens[3] == 0


def test_what_does_not_join_on_is_of_no_use() -> None:
    """The host has tokens 200 to 249 of a history of which the instance has 100."""
    workload = Workload(sessions=(RoutedWork(a_session((0, 500, 2, 0.0)), (0,)),))
    world = Simulation(colocated(GEMMA), workload, HOST, with_numba=False).world
    entry = world.entries[0]
    entry.tokens, entry.host_start, entry.host_tokens = 100, 200, 50
    assert reached_tokens(world, 0, 0) == 100
    entry.tokens = 200
    assert reached_tokens(world, 0, 0) == 250
