"""Two requests and a few iterations, computed by hand from the latency of each iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.sim.build import RoutedWork, Workload
from bench.sim.cluster import Cluster, ModelPool
from bench.sim.compiled import HAS_NUMBA
from bench.sim.conservation import check
from bench.sim.latency import Chunk, Iteration, LatencyModel
from bench.sim.simulation import Simulation
from bench.workloads.lengths import azure_2024
from bench.workloads.routers import markov_route, uniform_switches
from bench.workloads.sessions import RoutedSession, SessionCall, draw_sessions
from bench.workloads.trace import Trace
from bench.workloads.traffic import drawn_traffic

if TYPE_CHECKING:
    from bench.sim.outcome import Outcome

LLAMA, GEMMA = LatencyModel("Llama-3.1-8B"), LatencyModel("Gemma-7B")
"""Gemma's KV pool holds 124,761 tokens: small enough to fill."""


def requests(*rows: tuple[float, int, int]) -> Trace:
    """Of (arrival, prompt, output)."""
    arrival_s, prompt, output = zip(*rows, strict=True)
    return Trace(
        name="requests",
        arrival_s=np.array(arrival_s, dtype=float),
        input_tokens=np.array(prompt),
        output_tokens=np.array(output),
    )


def a_session(*calls: tuple[int, int, int, float]) -> RoutedSession:
    """Of (kept, new, output, gap)."""
    return RoutedSession(
        session_id="s",
        kind="k",
        task="t",
        arrival_s=0.0,
        calls=tuple(SessionCall(*c) for c in calls),
    )


def colocated(*latencies: LatencyModel, instances: int = 1, **limits: int) -> Cluster:
    return Cluster(
        pools=tuple(ModelPool(latency=one, colocated=instances) for one in latencies), **limits
    )


def split(latency: LatencyModel, prefill: int = 1, decode: int = 1, **limits: int) -> Cluster:
    return Cluster(pools=(ModelPool(latency=latency, prefill=prefill, decode=decode),), **limits)


def run(cluster: Cluster, normal: Trace | None = None, *routed: RoutedWork) -> Outcome:
    traffic = (normal, *[None] * (len(cluster.pools) - 1)) if normal is not None else ()
    simulation = Simulation(cluster, Workload(normal=traffic, sessions=routed), with_numba=False)
    outcome = simulation.run()
    check(simulation)
    assert outcome.finished.all()
    return outcome


def lasts(latency: LatencyModel, decodes: tuple[int, ...] = (), *chunks: tuple[int, int]) -> float:
    return latency.iteration_s(Iteration(decodes, tuple(Chunk(*chunk) for chunk in chunks)))


def test_a_request_that_arrives_in_an_iteration_joins_the_next_one() -> None:
    outcome = run(colocated(LLAMA), requests((0, 100, 3), (0.001, 50, 2)))
    first_s = lasts(LLAMA, (), (100, 0))
    second_s = first_s + lasts(LLAMA, (101,), (50, 0))
    third_s = second_s + lasts(LLAMA, (102, 51))
    np.testing.assert_allclose(outcome.admitted_s, [0, first_s], rtol=1e-12)
    np.testing.assert_allclose(outcome.first_token_s, [first_s, second_s], rtol=1e-12)
    np.testing.assert_allclose(outcome.finished_s, [third_s, third_s], rtol=1e-12)
    np.testing.assert_allclose(
        outcome.tpot_s, [(third_s - first_s) / 2, third_s - second_s], rtol=1e-12
    )


def test_a_long_prompt_is_cut_at_the_token_budget_and_shares_it() -> None:
    outcome = run(colocated(LLAMA), requests((0, 3000, 1), (0, 1500, 1)))
    first_s = lasts(LLAMA, (), (2048, 0))
    second_s = first_s + lasts(LLAMA, (), (952, 2048), (1096, 0))
    third_s = second_s + lasts(LLAMA, (), (404, 1096))
    np.testing.assert_allclose(outcome.finished_s, [second_s, third_s], rtol=1e-12)
    assert (outcome.finished_s == outcome.first_token_s).all()


def test_kv_is_reserved_at_admission_so_the_second_waits_for_the_first() -> None:
    outcome = run(colocated(GEMMA), requests((0, 100_000, 2), (0, 30_000, 2)))
    assert outcome.admitted_s[1] == outcome.finished_s[0]
    # Beside each other they would fit if the first had been smaller.
    outcome = run(colocated(GEMMA), requests((0, 90_000, 2), (0, 30_000, 2)))
    assert outcome.admitted_s[1] < outcome.first_token_s[0]


def test_at_most_so_many_sequences_run() -> None:
    rows = [(0.0, 10, 5)] * 3
    outcome = run(colocated(LLAMA, max_sequences=2, max_batch_tokens=64), requests(*rows))
    assert outcome.admitted_s[2] == outcome.finished_s[0] < outcome.finished_s[1]


def test_the_next_call_of_a_session_computes_what_it_adds() -> None:
    session = a_session((0, 1000, 10, 0), (1010, 100, 5, 2.0))
    outcome = run(colocated(LLAMA), None, RoutedWork(session, (0, 0)))
    # Held are prompt and output but the last token, 1009, of which 63 whole blocks of 16.
    assert outcome.cached_tokens.tolist() == [0, 1008]
    assert outcome.arrival_s[1] == outcome.finished_s[0] + 2.0
    assert outcome.ttft_s[1] == pytest.approx(lasts(LLAMA, (), (102, 1008)), rel=1e-9)


def test_a_switch_finds_nothing_and_coming_back_finds_what_was_left() -> None:
    session = a_session((0, 1000, 10, 0), (1010, 100, 10, 1.0), (1120, 50, 5, 1.0))
    outcome = run(colocated(LLAMA, GEMMA), None, RoutedWork(session, (0, 1, 0)))
    assert outcome.cached_tokens.tolist() == [0, 0, 1008]
    assert outcome.ttft_s[1] == pytest.approx(lasts(GEMMA, (), (1110, 0)), rel=1e-9)
    assert outcome.ttft_s[2] == pytest.approx(lasts(LLAMA, (), (162, 1008)), rel=1e-9)


def test_after_a_compaction_nothing_of_the_old_history_counts() -> None:
    session = a_session((0, 1000, 10, 0), (0, 1100, 10, 1.0), (1110, 100, 5, 1.0))
    outcome = run(colocated(LLAMA), None, RoutedWork(session, (0, 0, 0)))
    assert outcome.cached_tokens.tolist() == [0, 0, 1104]


def test_eviction_cuts_the_end_of_the_oldest_entry() -> None:
    session = a_session((0, 100_000, 1, 0), (100_001, 100, 1, 1000.0))
    other = requests((500.0, 60_000, 10))
    outcome = run(colocated(GEMMA), other, RoutedWork(session, (0, 0)))
    pool = GEMMA.kv_pool_tokens
    left = 100_000 - (60_010 - (pool - 100_000))
    assert outcome.cached_tokens.tolist() == [0, 0, left - left % 16]


def test_a_split_cluster_moves_the_kv_and_decodes_elsewhere() -> None:
    outcome = run(split(LLAMA), requests((0, 100, 4), (0.001, 50, 2)))
    token_s = LLAMA.kv_transfer_s(1, 50e9)
    first_s = lasts(LLAMA, (), (100, 0))
    second_s = first_s + lasts(LLAMA, (), (50, 0))
    np.testing.assert_allclose(outcome.first_token_s, [first_s, second_s], rtol=1e-12)
    moved_s = [first_s + 100 * token_s, second_s + 50 * token_s]
    np.testing.assert_allclose(outcome.transfer_end_s, moved_s, rtol=1e-12)
    one_s = moved_s[0] + lasts(LLAMA, (101,))
    two_s = one_s + lasts(LLAMA, (102,))
    # The second prompt arrives in the second iteration of the first, and joins the third.
    assert one_s < moved_s[1] < two_s
    both_s = two_s + lasts(LLAMA, (103, 51))
    np.testing.assert_allclose(outcome.finished_s, [both_s, both_s], rtol=1e-12)


def test_the_link_carries_one_transfer_after_the_other() -> None:
    outcome = run(split(LLAMA, prefill=2), requests((0, 2000, 3), (0, 2000, 3)))
    token_s = LLAMA.kv_transfer_s(1, 50e9)
    first_s = lasts(LLAMA, (), (2000, 0))
    np.testing.assert_allclose(
        outcome.transfer_end_s, [first_s + 2000 * token_s, first_s + 4000 * token_s], rtol=1e-12
    )


def test_only_what_the_decode_instance_lacks_is_moved() -> None:
    session = a_session((0, 1000, 10, 0), (1010, 100, 5, 2.0))
    outcome = run(split(LLAMA), None, RoutedWork(session, (0, 0)))
    # The prefill instance never saw the output; the decode instance has all but its last token.
    assert outcome.cached_tokens.tolist() == [0, 992]
    assert outcome.moved_tokens.tolist() == [1000, 1110 - 1008]


def test_a_decode_queue_waits_for_room() -> None:
    outcome = run(split(GEMMA, prefill=2), requests((0, 80_000, 50), (0, 80_000, 50)))
    assert outcome.decode_admitted_s[1] == outcome.finished_s[0]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: run(colocated(GEMMA), requests((0, 124_760, 9))), "never fits into the 124761"),
        (
            lambda: run(colocated(LLAMA), None, RoutedWork(a_session((0, 9, 1, 0)), (1,))),
            "session s is routed to no pool: 1",
        ),
        (
            lambda: run(colocated(LLAMA), None, RoutedWork(a_session((0, 9, 1, 0)), (0, 0))),
            "session s has 1 calls, its route 2",
        ),
        (lambda: run(colocated(LLAMA)), "a workload has at least one request"),
        (
            lambda: ModelPool(latency=LLAMA, colocated=1, prefill=1, decode=1),
            "or prefill and decode",
        ),
        (lambda: ModelPool(latency=LLAMA, prefill=1), "got colocated 0, prefill 1, decode 0"),
        (lambda: ModelPool(latency=LLAMA, colocated=65), "a pool has 0 to 64 instances of a kind"),
        (lambda: colocated(LLAMA, max_batch_tokens=8), "max_batch_tokens must be max_sequences"),
        (lambda: colocated(LLAMA, block_tokens=0), "block_tokens must be 1 to 4096, got 0"),
    ],
)
def test_what_could_never_run_is_refused(build: object, message: str) -> None:
    assert callable(build)
    with pytest.raises(ValueError, match=message):
        build()


def a_mixed_simulation(seed: int, *, is_split: bool, with_numba: bool) -> Simulation:
    rng = np.random.default_rng(seed)
    kinds = {"prefill": 2, "decode": 1} if is_split else {"colocated": 2}
    pools = tuple(ModelPool(latency=one, **kinds) for one in (LLAMA, GEMMA))
    normal = tuple(drawn_traffic(azure_2024("conversation"), 12, 20, rng) for _ in pools)
    sessions = draw_sessions("Router-R1", 0.5, 20, rng)
    chain = uniform_switches(2, 0.4)
    work = tuple(RoutedWork(s, markov_route(len(s.calls), chain, rng)) for s in sessions)
    cluster = Cluster(pools=pools)
    return Simulation(cluster, Workload(normal=normal, sessions=work), with_numba=with_numba)


@settings(max_examples=8)
@given(st.integers(0, 2**32), st.booleans(), st.floats(0, 30))
def test_nothing_is_lost_at_any_time(seed: int, is_split: bool, pause_s: float) -> None:
    simulation = a_mixed_simulation(seed, is_split=is_split, with_numba=False)
    simulation.run(pause_s)
    check(simulation)
    outcome = simulation.run()
    check(simulation)
    assert outcome.finished.all()


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed (extra `sim`)")
def test_compiled_and_plain_runs_are_the_same(is_split: bool) -> None:
    """Times to a rounding: a compiler may add up in another order."""
    plain, fast = (
        a_mixed_simulation(3, is_split=is_split, with_numba=with_numba)
        for with_numba in (False, True)
    )
    expected, outcome = plain.run(), fast.run()
    check(fast)
    assert outcome.events == expected.events
    assert (outcome.cached_tokens == expected.cached_tokens).all()
    np.testing.assert_allclose(outcome.finished_s, expected.finished_s, rtol=1e-9)
