"""Which call is a switch, and to which time a transfer counts."""

from __future__ import annotations

import numpy as np

from bench.sim.approach import Approach, TransferCounts
from bench.sim.build import RoutedWork, Workload
from bench.sim.cluster import Cluster, ModelPool
from bench.sim.latency import LatencyModel
from bench.sim.simulation import Simulation
from bench.workloads.sessions import RoutedSession, SessionCall
from bench.workloads.trace import Trace

LLAMA, GEMMA = LatencyModel("Llama-3.1-8B"), LatencyModel("Gemma-7B")
ONE = Trace(
    name="one", arrival_s=np.zeros(1), input_tokens=np.array([400]), output_tokens=np.array([3])
)


def a_session(*routes: int) -> RoutedWork:
    calls = (SessionCall(0, 500, 10, 0.0), *[SessionCall(510, 100, 10, 1.0)] * (len(routes) - 1))
    session = RoutedSession(session_id="s", kind="k", task="t", arrival_s=0.0, calls=calls)
    return RoutedWork(session, routes)


def test_a_call_after_one_on_another_model_is_a_switch() -> None:
    cluster = Cluster(pools=tuple(ModelPool(latency=one, colocated=1) for one in (LLAMA, GEMMA)))
    workload = Workload(normal=(ONE, None), sessions=(a_session(0, 0, 1), a_session(1, 0)))
    outcome = Simulation(cluster, workload, with_numba=False).run()
    assert outcome.call.tolist() == [-1, 0, 1, 2, 0, 1]
    assert outcome.is_switch.tolist() == [False, False, False, True, False, True]
    assert outcome.instances.model.tolist() == [0, 1]
    assert outcome.instances.gpus.tolist() == [1, 1]


def test_a_transfer_counts_to_the_time_that_was_asked_for() -> None:
    cluster = Cluster(pools=(ModelPool(latency=LLAMA, prefill=1, decode=1),))
    times = {}
    for counts_to in TransferCounts:
        approach = Approach(transfer_counts_to=counts_to)
        outcome = Simulation(cluster, Workload(normal=(ONE,)), approach, with_numba=False).run()
        times[counts_to] = outcome
    tpot, ttft = times[TransferCounts.TPOT], times[TransferCounts.TTFT]
    moved_s = LLAMA.kv_transfer_s(400, cluster.link_bytes_per_s_per_gpu)
    np.testing.assert_allclose(ttft.ttft_s - tpot.ttft_s, moved_s, rtol=1e-9)
    np.testing.assert_allclose(tpot.tpot_s - ttft.tpot_s, moved_s / 2, rtol=1e-9)
    assert (ttft.latency_s == tpot.latency_s).all()
