"""Simulated capacities lie where the paper's testbed found them."""

from __future__ import annotations

import pytest

from bench.sim.capacity import ATTAINMENT, attainment_at, find_capacity
from bench.sim.cluster import Cluster, ModelPool
from bench.sim.latency import LatencyMode, LatencyModel
from bench.workloads.lengths import azure_2024

CONVERSATION = azure_2024("conversation")


def one_instance(model: str, mode: LatencyMode) -> Cluster:
    return Cluster(pools=(ModelPool(latency=LatencyModel(model, mode), colocated=1),))


@pytest.mark.parametrize(
    ("model", "mode", "capacity_per_s"),
    [
        # Fitted to the paper's 12.8, 11.0 and 3.8 requests per second (appendix D.1).
        ("Qwen2.5-7B", LatencyMode.VLLM_TESTBED, 12.74),
        ("Llama-3.1-8B", LatencyMode.VLLM_TESTBED, 11.14),
        ("Llama-3.1-70B", LatencyMode.VLLM_TESTBED, 3.72),
        ("Llama-3.1-70B", LatencyMode.KERNEL, 5.0),
    ],
)
def test_capacity_is_the_known_one_within_its_error(
    model: str, mode: LatencyMode, capacity_per_s: float
) -> None:
    cluster = one_instance(model, mode)
    # Bursts weigh as many requests in each case; one seed moves the capacity by up to 4%.
    duration_s = 8000 / capacity_per_s
    below, above = (
        attainment_at(cluster, CONVERSATION, rate_per_s, duration_s, 0, with_numba=False)
        for rate_per_s in (0.94 * capacity_per_s, 1.06 * capacity_per_s)
    )
    assert below >= ATTAINMENT > above


def test_search_ends_between_a_rate_that_is_met_and_one_that_is_not() -> None:
    cluster = one_instance("Llama-3.1-70B", LatencyMode.VLLM_TESTBED)
    capacity = find_capacity(
        cluster,
        CONVERSATION,
        lowest_per_s=3.0,
        highest_per_s=4.5,
        duration_s=300,
        tolerance_share=0.05,
        with_numba=False,
    )
    assert 3.0 <= capacity.rate_per_s < 4.5
    assert capacity.attainment >= ATTAINMENT
    with pytest.raises(ValueError, match=r"capacity does not lie between 0\.5 and 1 per s"):
        find_capacity(
            cluster,
            CONVERSATION,
            lowest_per_s=0.5,
            highest_per_s=1,
            duration_s=60,
            with_numba=False,
        )
    with pytest.raises(ValueError, match="rates must be 0 < lowest < highest, got 2, 1"):
        find_capacity(cluster, CONVERSATION, lowest_per_s=2, highest_per_s=1)
