"""Whatever the approach: nothing is lost, nothing is early, and compiled code does the same."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bench.sim.approach import Approach, Credit, Dedicated, HostTier
from bench.sim.build import RoutedWork, Workload
from bench.sim.cluster import Cluster, ModelPool
from bench.sim.compiled import HAS_NUMBA
from bench.sim.conservation import check
from bench.sim.simulation import Simulation
from bench.workloads.lengths import azure_2024
from bench.workloads.routers import markov_route, uniform_switches
from bench.workloads.sessions import draw_sessions
from bench.workloads.traffic import drawn_traffic
from policy.slack import Accrual
from policy.vocabulary import Controller
from tests.bench.sim.builders import GEMMA, LLAMA

SMALL_HOST = HostTier(bytes_per_gpu=8e9, bytes_per_s_per_gpu=10e9)
APPROACHES = {
    "off": Approach(),
    "host": Approach(host_tier=SMALL_HOST),
    "oracle": Approach(oracle=True, host_tier=HostTier()),
    "harvest": Approach(controller=Controller.HARVEST, delta=0.1, credit=Credit.TOTAL),
    "predictive": Approach(controller=Controller.PREDICTIVE, delta=0.1, host_tier=SMALL_HOST),
    "slo": Approach(controller=Controller.HARVEST_SLO, accrual=Accrual.ANY, idle_age_s=0.5),
    "slo_host": Approach(controller=Controller.HARVEST_SLO, n_min_tokens=64, host_tier=SMALL_HOST),
    "eager": Approach(controller=Controller.EAGER, host_tier=SMALL_HOST),
    "request": Approach(controller=Controller.REQUEST, top_k=1),
    "dedicated": Approach(dedicated=Dedicated.CALL_RUNS_THERE),
    "dedicated_moves": Approach(dedicated=Dedicated.KV_MOVES, host_tier=SMALL_HOST),
}


def a_mixed_simulation(
    seed: int, approach: Approach, *, is_split: bool, with_numba: bool
) -> Simulation:
    """Gemma's pool is small: it is full most of the time."""
    rng = np.random.default_rng(seed)
    kinds = {"prefill": 2, "decode": 1} if is_split else {"colocated": 2}
    pools = tuple(ModelPool(latency=one, **kinds) for one in (LLAMA, GEMMA))
    normal = tuple(drawn_traffic(azure_2024("conversation"), 8, 15, rng) for _ in pools)
    sessions = draw_sessions("Router-R1", 0.7, 15, rng)
    chain = uniform_switches(2, 0.4)
    work = tuple(RoutedWork(s, markov_route(len(s.calls), chain, rng)) for s in sessions)
    workload = Workload(normal=normal, sessions=work)
    return Simulation(Cluster(pools=pools), workload, approach, with_numba=with_numba)


# What it read from a small host was pushed out by what made room for it.
@example(seed=293, name="slo_host", is_split=False, pause_s=0.0)
@settings(max_examples=20)
@given(st.integers(0, 2**32), st.sampled_from(sorted(APPROACHES)), st.booleans(), st.floats(0, 30))
def test_nothing_is_lost_at_any_time(seed: int, name: str, is_split: bool, pause_s: float) -> None:
    approach = APPROACHES[name]
    is_split = is_split and approach.dedicated is None
    simulation = a_mixed_simulation(seed, approach, is_split=is_split, with_numba=False)
    simulation.run(pause_s)
    check(simulation)
    outcome = simulation.run()
    check(simulation)
    assert outcome.finished.all()


@pytest.mark.parametrize(
    ("name", "is_split"),
    [(name, False) for name in APPROACHES] + [("off", True), ("slo_host", True), ("oracle", True)],
)
@pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed (extra `sim`)")
def test_compiled_and_plain_runs_are_the_same(name: str, is_split: bool) -> None:
    """Times to a rounding: a compiler may add up in another order."""
    plain, fast = (
        a_mixed_simulation(3, APPROACHES[name], is_split=is_split, with_numba=with_numba)
        for with_numba in (False, True)
    )
    expected, outcome = plain.run(), fast.run()
    check(fast)
    assert outcome.events == expected.events
    assert (outcome.cached_tokens == expected.cached_tokens).all()
    assert (outcome.shadow_tokens == expected.shadow_tokens).all()
    assert outcome.instances.shadow_computed_tokens.tolist() == (
        expected.instances.shadow_computed_tokens.tolist()
    )
    np.testing.assert_allclose(outcome.finished_s, expected.finished_s, rtol=1e-9)


@pytest.mark.parametrize(
    "name",
    [
        "used_tokens",
        "shadow_tokens",
        "host_used_tokens",
        "pending_prefill_tokens",
        "routed_decodes",
        "queued_jobs",
        "computed_tokens",
        "shadow_hit_tokens",
    ],
)
def test_a_count_that_is_wrong_is_found(name: str) -> None:
    simulation = a_finished_simulation()
    row = simulation.world.instances[0]
    before = getattr(row, name)
    setattr(row, name, before + 1)
    with pytest.raises(AssertionError):
        check(simulation)
    setattr(row, name, before)
    check(simulation)


@cache
def a_finished_simulation() -> Simulation:
    approach = APPROACHES["slo_host"]
    simulation = a_mixed_simulation(1, approach, is_split=False, with_numba=False)
    simulation.run()
    return simulation
