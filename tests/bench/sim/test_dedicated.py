"""One extra instance per model that runs all shadow work: a call goes there, or its KV moves."""

from __future__ import annotations

import pytest

from bench.sim.approach import Approach, Dedicated
from bench.sim.build import RoutedWork
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

CALLS = ((0, 3000, 10, 0.0), (3010, 100, 5, 10.0))
CASE = Case(colocated(LLAMA, GEMMA), (RoutedWork(a_session(*CALLS), (0, 1)),))
B, B_EXTRA = 2, 3
HELD = 3008


def test_the_call_runs_on_the_extra_instance() -> None:
    outcome = CASE.run(Approach(dedicated=Dedicated.CALL_RUNS_THERE))
    assert outcome.prefill_instance.tolist() == [0, B_EXTRA]
    assert outcome.cached_tokens.tolist() == outcome.shadow_tokens.tolist() == [0, HELD]
    assert outcome.ttft_s[1] == pytest.approx(lasts(GEMMA, (), (3110 - HELD, HELD)), rel=1e-9)


def test_or_its_kv_moves_over_the_link() -> None:
    outcome = CASE.run(Approach(dedicated=Dedicated.KV_MOVES))
    assert outcome.prefill_instance.tolist() == [0, B]
    assert outcome.cached_tokens.tolist() == outcome.shadow_tokens.tolist() == [0, HELD]
    moved_s = HELD * GEMMA.kv_transfer_s(1, CASE.cluster.link_bytes_per_s_per_gpu)
    expected_s = moved_s + lasts(GEMMA, (), (3110 - HELD, HELD))
    assert outcome.ttft_s[1] == pytest.approx(expected_s, rel=1e-9)


def test_its_iterations_are_full_and_normal_traffic_never_comes_there() -> None:
    traffic = (None, requests(*[(0.1 * n, 2000, 20) for n in range(20)]))
    outcome = CASE._replace(normal=traffic).run(Approach(dedicated=Dedicated.KV_MOVES))
    assert set(outcome.prefill_instance[:20]) == {B}
    parts = ((2048, 0), (2992 - 2048, 2048), (16, 2992))
    assert outcome.instances.busy_s[B_EXTRA] == pytest.approx(
        sum(lasts(GEMMA, (), part) for part in parts), rel=1e-9
    )


def test_a_split_cluster_has_no_such_instance() -> None:
    with pytest.raises(ValueError, match="dedicated needs colocated instances, got the split pool"):
        Case(split(LLAMA), CASE.sessions).run(Approach(dedicated=Dedicated.KV_MOVES))
