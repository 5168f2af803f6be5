"""What a cell says of a run, counted again from the requests."""

from __future__ import annotations

import numpy as np
import pytest

from bench.study.approaches import ApproachName
from bench.study.cell import cell_result, measured_calls, run_approaches, run_cell
from bench.study.schema import PoolConfig
from tests.bench.study.builders import LARGE, SMALL, a_config

CAPACITIES_PER_S = (8.0, 8.0)
BASE = ApproachName.NO_SHADOW


def test_sums_are_those_of_the_measured_calls() -> None:
    config = a_config()
    runs = run_approaches(config, (BASE,), CAPACITIES_PER_S)
    outcome = runs[0].outcome
    result = cell_result(config, runs).results[BASE]
    begun_s = {
        int(session): float(outcome.arrival_s[(outcome.session == session)].min())
        for session in np.unique(outcome.session[outcome.session >= 0])
    }
    wanted = [
        i for i, session in enumerate(outcome.session)
        if session >= 0 and 10 <= begun_s[int(session)] < 30
    ]  # fmt: skip
    assert wanted
    assert np.flatnonzero(measured_calls(config, outcome)).tolist() == wanted
    assert result.all_calls.calls == len(wanted)
    assert result.all_calls.latency_s == pytest.approx(outcome.latency_s[wanted].sum(), abs=1e-5)
    switches = [i for i in wanted if outcome.is_switch[i]]
    assert result.switch_calls.calls == len(switches)
    by_model = result.switch_calls_by_model
    assert sum(one.calls for one in by_model.values()) == len(switches)
    assert sum(one.calls for one in result.switch_calls_by_context.values()) == len(switches)


def test_normal_requests_of_the_measured_window_are_counted() -> None:
    config = a_config(sessions=None)
    runs = run_approaches(config, (BASE,), CAPACITIES_PER_S)
    result = cell_result(config, runs).results[BASE]
    arrival_s = runs[0].outcome.arrival_s
    assert result.normal is not None
    assert result.normal.requests == int(((arrival_s >= 10) & (arrival_s < 30)).sum())
    assert result.normal.meeting_slos <= result.normal.requests
    assert result.sessions == 0


def test_only_a_split_cluster_has_busy_links() -> None:
    pools = {model: PoolConfig(prefill=1, decode=1) for model in (SMALL, LARGE)}
    split = run_cell(a_config(models=pools), (BASE,), CAPACITIES_PER_S).results[BASE]
    together = run_cell(a_config(), (BASE,), CAPACITIES_PER_S).results[BASE]
    assert 0 < split.work.link_busy_share < 1
    assert together.work.link_busy_share == 0


def test_the_same_seed_gives_the_same_cell() -> None:
    first = run_cell(a_config(), (BASE,), CAPACITIES_PER_S)
    assert run_cell(a_config(), (BASE,), CAPACITIES_PER_S) == first
