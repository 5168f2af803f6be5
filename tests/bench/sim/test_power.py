"""Energy of one request, added up by hand."""

from __future__ import annotations

import numpy as np
import pytest

from bench.sim.build import Workload
from bench.sim.cluster import Cluster, ModelPool
from bench.sim.latency import LatencyModel
from bench.sim.power import PowerModel, energy_j
from bench.sim.simulation import Simulation
from bench.workloads.trace import Trace

LLAMA_70B = LatencyModel("Llama-3.1-70B")


def test_an_instance_draws_idle_power_always_and_more_while_it_works() -> None:
    trace = Trace(
        name="one", arrival_s=np.zeros(1), input_tokens=np.array([900]), output_tokens=np.array([2])
    )
    cluster = Cluster(pools=(ModelPool(latency=LLAMA_70B, colocated=2),))
    outcome = Simulation(cluster, Workload(normal=(trace,)), with_numba=False).run()
    power = PowerModel(idle_w=100, active_w=200, compute_w=300)
    busy_s = outcome.finished_s[0]
    compute_s = (LLAMA_70B.linear_s(8192) - LLAMA_70B.linear_s(4096)) / 4096 * 901
    first, second = energy_j(outcome.instances, cluster, 10.0, power)
    assert first == pytest.approx(4 * (100 * 10 + 200 * busy_s + 300 * compute_s))
    assert second == 4 * 100 * 10


def test_power_is_not_negative() -> None:
    with pytest.raises(ValueError, match=r"power\.idle_w must be >= 0, got -1"):
        PowerModel(idle_w=-1)
