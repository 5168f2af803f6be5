"""Two requests and a few iterations, computed by hand from the latency of each iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from bench.sim.build import RoutedWork
from bench.sim.cluster import Cluster, ModelPool
from tests.bench.sim.builders import (
    GEMMA,
    LLAMA,
    Case,
    a_session,
    colocated,
    lasts,
    requests,
    split,
)

if TYPE_CHECKING:
    from bench.sim.outcome import Outcome
    from bench.workloads.trace import Trace


def run(cluster: Cluster, normal: Trace | None = None, *routed: RoutedWork) -> Outcome:
    traffic = (normal, *[None] * (len(cluster.pools) - 1)) if normal is not None else ()
    return Case(cluster, routed, traffic).run()


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
