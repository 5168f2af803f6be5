"""Arrivals depend on seed, hour and workload, and on nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bench.study.approaches import ApproachName
from bench.study.capacities import pools_alone
from bench.study.schema import (
    DrawnSessions,
    FixedRouter,
    HostTierConfig,
    HourWindow,
    NormalConfig,
    RunConfig,
    SessionsConfig,
    ShadowConfig,
)
from bench.study.workload import cluster_of, workload_of
from tests.bench.study.builders import LARGE, a_config

if TYPE_CHECKING:
    from bench.sim.build import Workload

CAPACITIES_PER_S = (10.0, 8.0)
RUN = RunConfig(warmup_s=10, measured_s=20, drain_s=5)


def arrivals_s(workload: Workload) -> list[list[float]]:
    return [trace.arrival_s.tolist() for trace in workload.normal if trace is not None]


def test_an_approach_meets_the_same_arrivals() -> None:
    first = workload_of(a_config(), CAPACITIES_PER_S)
    second = workload_of(a_config(approach=ApproachName.ORACLE), CAPACITIES_PER_S)
    assert arrivals_s(first) == arrivals_s(second)
    assert first.sessions == second.sessions


def test_another_seed_or_hour_gives_other_arrivals() -> None:
    first = workload_of(a_config(), CAPACITIES_PER_S)
    other_seed = a_config(run=RUN.model_copy(update={"seed": 1}))
    other_hour = a_config(normal=NormalConfig(window=HourWindow.MEDIAN))
    for config in (other_seed, other_hour):
        second = workload_of(config, CAPACITIES_PER_S)
        assert arrivals_s(first) != arrivals_s(second)
        assert first.sessions != second.sessions


def test_more_sessions_leave_normal_traffic_as_it_is() -> None:
    more = SessionsConfig(workload=DrawnSessions(benchmark="FusionBench", per_s=2.0))
    first = workload_of(a_config(), CAPACITIES_PER_S)
    second = workload_of(a_config(sessions=more), CAPACITIES_PER_S)
    assert arrivals_s(first) == arrivals_s(second)
    assert len(second.sessions) > len(first.sessions)


def test_the_hour_s_share_of_the_load_comes_out() -> None:
    long = RunConfig(warmup_s=0, measured_s=4000, drain_s=0)
    rates = {}
    for window in HourWindow:
        config = a_config(normal=NormalConfig(window=window), sessions=None, run=long)
        trace = workload_of(config, CAPACITIES_PER_S).normal[0]
        assert trace is not None
        rates[window] = trace.rate_per_s
    np.testing.assert_allclose(rates[HourWindow.PEAK], 7.0, rtol=0.03)
    np.testing.assert_allclose(rates[HourWindow.MEDIAN], 7.0 * 0.62, rtol=0.03)
    np.testing.assert_allclose(rates[HourWindow.TROUGH], 7.0 * 0.5, rtol=0.03)


def test_normal_traffic_goes_on_while_measured_sessions_finish() -> None:
    workload = workload_of(a_config(), (50.0, 50.0))
    trace = workload.normal[0]
    assert trace is not None
    assert trace.arrival_s[-1] > RUN.end_s
    assert all(work.session.arrival_s < RUN.end_s for work in workload.sessions)


def test_a_fixed_router_sends_the_same_sessions_to_one_model() -> None:
    routed = a_config().sessions
    assert routed is not None
    fixed = routed.model_copy(update={"router": FixedRouter(kind="fixed", model=LARGE)})
    works = workload_of(a_config(sessions=fixed), CAPACITIES_PER_S).sessions
    assert {model for work in works for model in work.route} == {1}
    expected = workload_of(a_config(), CAPACITIES_PER_S).sessions
    assert [work.session for work in works] == [work.session for work in expected]


def test_looser_slos_are_those_of_requests_and_not_of_the_capacity() -> None:
    loose = a_config(slo_scale=2.0)
    before, now = cluster_of(a_config()).pools[0].latency, cluster_of(loose).pools[0].latency
    assert now.tpot_slo_s() == 2 * before.tpot_slo_s()
    assert now.ttft_slo_s(3000) == 2 * before.ttft_slo_s(3000)
    assert pools_alone(loose) == pools_alone(a_config())


def test_a_capacity_is_not_measured_again_for_what_normal_traffic_never_meets() -> None:
    changes: dict[str, Any] = {
        "shadow": ShadowConfig(beta=1.0),
        "host_tier": HostTierConfig(gb_per_gpu=1.0),
        "keeps_finished": False,
        "approach": ApproachName.HARVEST_SLO,
    }
    assert pools_alone(a_config(**changes)) == pools_alone(a_config())
    assert pools_alone(a_config(max_batch_tokens=512)) != pools_alone(a_config())
