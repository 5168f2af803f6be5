"""One cell: a configuration under several approaches, on the same arrivals.

Calls are compared that belong to sessions of the measured window and that ended under every
approach; what happens to normal traffic is told of the requests of that window."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bench.sim.capacity import meets_slos
from bench.sim.conservation import check
from bench.sim.power import energy_j
from bench.sim.simulation import Simulation
from bench.study.approaches import switches_of
from bench.study.prices import dollars_per_token
from bench.study.records import ApproachResult, CellResult, NormalTraffic, Sums, Work
from bench.study.workload import cluster_of, workload_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.sim.cluster import Cluster
    from bench.sim.outcome import Outcome
    from bench.study.approaches import ApproachName
    from bench.study.schema import SimConfig

CACHED_PRICE_SHARE = 0.1
"""Of the price of input that is not cached (paper, section 5.1)."""
CONTEXT_BINS_TOKENS = (0, 2048, 4096, 8192, 16_384, 32_768, 65_536)


class Ran(NamedTuple):
    name: ApproachName
    cluster: Cluster
    outcome: Outcome


def run_cell(
    config: SimConfig, names: Sequence[ApproachName], capacities_per_s: tuple[float, ...]
) -> CellResult:
    return cell_result(config, run_approaches(config, names, capacities_per_s))


def cell_result(config: SimConfig, runs: Sequence[Ran]) -> CellResult:
    finished = np.logical_and.reduce([run.outcome.finished for run in runs])
    results = {str(run.name): _result(config, run, finished) for run in runs}
    return CellResult(
        results=results,
        sim_s=round(sum(run.outcome.end_s for run in runs), 6),
        events=sum(run.outcome.events for run in runs),
    )


def run_approaches(
    config: SimConfig, names: Sequence[ApproachName], capacities_per_s: tuple[float, ...]
) -> list[Ran]:
    cluster, workload = cluster_of(config), workload_of(config, capacities_per_s)
    runs: list[Ran] = []
    for name in names:
        switches = switches_of(name, config.shadow, config.host_tier)
        simulation = Simulation(cluster, workload, switches)
        outcome = simulation.run()
        check(simulation)
        runs.append(Ran(name, cluster, outcome))
    return runs


def measured_calls(config: SimConfig, outcome: Outcome) -> np.ndarray:
    """Of sessions whose first call came in the measured window."""
    is_call = outcome.session >= 0
    first_s = np.full(int(outcome.session.max(initial=-1)) + 1, np.inf)
    first = is_call & (outcome.call == 0)
    first_s[outcome.session[first]] = outcome.arrival_s[first]
    begun_s = np.where(is_call, first_s[outcome.session] if len(first_s) else np.inf, np.inf)
    window: np.ndarray = is_call & (begun_s >= config.run.warmup_s) & (begun_s < config.run.end_s)
    return window


def call_costs_dollars(config: SimConfig, outcome: Outcome) -> np.ndarray:
    price = np.array([dollars_per_token(model) for model in config.models])[outcome.model]
    uncached = outcome.prompt_tokens - outcome.cached_tokens
    billed = uncached + CACHED_PRICE_SHARE * outcome.cached_tokens + outcome.output_tokens
    costs: np.ndarray = price * billed
    return costs


def good_requests(cluster: Cluster, outcome: Outcome) -> np.ndarray:
    """Which requests and calls met the SLOs of their model and prompt length."""
    good = np.zeros(len(outcome.model), dtype=bool)
    for number, pool in enumerate(cluster.pools):
        of_pool = outcome.model == number
        good[of_pool] = meets_slos(outcome, pool.latency)[of_pool]
    return good


def _result(config: SimConfig, run: Ran, finished: np.ndarray) -> ApproachResult:
    outcome = run.outcome
    calls = measured_calls(config, outcome) & finished
    switches = calls & outcome.is_switch
    costs = call_costs_dollars(config, outcome)
    bins = np.digitize(outcome.prompt_tokens, CONTEXT_BINS_TOKENS) - 1
    good = good_requests(run.cluster, outcome)

    def sums(wanted: np.ndarray) -> Sums:
        return Sums(
            calls=int(wanted.sum()),
            latency_s=_rounded(outcome.latency_s[wanted].sum()),
            ttft_s=_rounded(outcome.ttft_s[wanted].sum()),
            prompt_tokens=int(outcome.prompt_tokens[wanted].sum()),
            cached_tokens=int(outcome.cached_tokens[wanted].sum()),
            cost_dollars=_rounded(costs[wanted].sum()),
        )

    return ApproachResult(
        sessions=len(np.unique(outcome.session[calls])),
        all_calls=sums(calls),
        switch_calls=sums(switches),
        switch_calls_by_model={
            model: sums(switches & (outcome.model == number))
            for number, model in enumerate(config.models)
        },
        switch_calls_by_context={
            str(least): sums(switches & (bins == number))
            for number, least in enumerate(CONTEXT_BINS_TOKENS)
        },
        normal=_normal(config, outcome, good),
        work=_work(config, run, good),
    )


def _normal(config: SimConfig, outcome: Outcome, good: np.ndarray) -> NormalTraffic | None:
    measured = (outcome.session < 0) & (outcome.arrival_s >= config.run.warmup_s)
    measured &= outcome.arrival_s < config.run.end_s
    if not measured.any():
        return None
    return NormalTraffic(
        requests=int(measured.sum()),
        meeting_slos=int(good[measured].sum()),
        ttft_s=_rounded(outcome.ttft_s[measured].sum()),
        tpot_s=_rounded(outcome.tpot_s[measured].sum()),
    )


def _work(config: SimConfig, run: Ran, good: np.ndarray) -> Work:
    # Not to the last event: one long session would weigh as much as the traffic.
    span_s = config.run.end_s + config.run.drain_s
    instances, outcome = run.outcome.instances, run.outcome
    return Work(
        gpus=int(instances.gpus.sum()),
        prefill_tokens=int((outcome.prompt_tokens - outcome.cached_tokens).sum()),
        shadow_computed_tokens=int(instances.shadow_computed_tokens.sum()),
        shadow_used_tokens=int(instances.shadow_used_tokens.sum()),
        good_requests=int(good.sum()),
        energy_j=_rounded(energy_j(instances, run.cluster, span_s).sum()),
        busy_share=_rounded(instances.busy_s.mean() / span_s),
        link_busy_share=_rounded(_link_busy_s(run) / span_s),
    )


def _link_busy_s(run: Ran) -> float:
    """Mean over a model's decode links, of the busiest model."""
    outcome, cluster = run.outcome, run.cluster
    busy_s = [0.0]
    for number, pool in enumerate(cluster.pools):
        if pool.decode:
            tokens = int(outcome.moved_tokens[outcome.model == number].sum())
            rate = cluster.link_bytes_per_s_per_gpu
            busy_s.append(pool.latency.kv_transfer_s(tokens, rate) / pool.decode)
    return max(busy_s)


def _rounded(value: float) -> float:
    """Sums of floats are the same on every machine only up to their last digits."""
    return round(float(value), 6)
