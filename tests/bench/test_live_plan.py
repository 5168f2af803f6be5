"""The plan of a cell: same seed, same traffic; the controller is not part of it."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace
from itertools import pairwise

import pytest

from bench.live.capacity import capacity_per_s
from bench.live.cells import Cell, FilterInvalid, chosen, full_matrix, smoke_matrix
from bench.live.lengths import draw_lengths
from bench.live.plan import draw_arrivals, plan_normal, plan_sessions
from bench.live.records import TriedRate
from bench.live.settings import FULL
from policy.vocabulary import Controller

CAPACITY = {"small": 1.5, "large": 1.2}


def a_cell(load: float = 0.7, controller: Controller = Controller.OFF, repeat: int = 1) -> Cell:
    return Cell(load=load, controller=controller, repeat=repeat)


def test_all_controllers_of_a_repeat_meet_the_same_requests() -> None:
    plans = [plan_normal(a_cell(controller=one), CAPACITY, FULL) for one in Controller]
    assert all(plan == plans[0] for plan in plans)
    assert plans[0] != plan_normal(a_cell(repeat=2), CAPACITY, FULL)


def test_requests_come_in_order_with_keys_of_their_own_and_begin_differently() -> None:
    plan = plan_normal(a_cell(), CAPACITY, FULL)
    assert [one.at_s for one in plan] == sorted(one.at_s for one in plan)
    assert len({one.key for one in plan}) == len(plan)
    assert len({tuple(one.prompt_ids()[:4]) for one in plan}) == len(plan)
    assert all(len(one.prompt_ids()) == one.prompt_tokens for one in plan)
    assert plan[0].prompt_ids() == plan[0].prompt_ids()


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_the_rate_is_the_load_times_each_models_capacity(load: float) -> None:
    long = replace(FULL, window_s=4000.0)
    plan = plan_normal(a_cell(load=load), CAPACITY, long)
    for model, rate_per_s in CAPACITY.items():
        arrived = sum(one.model == model for one in plan)
        assert arrived == pytest.approx(load * rate_per_s * 4000, rel=0.1)


def test_arrivals_are_poisson() -> None:
    times_s = draw_arrivals(2.0, 5000.0, random.Random(1))
    gaps_s = [later - at for at, later in pairwise(times_s)]
    assert statistics.mean(gaps_s) == pytest.approx(0.5, rel=0.05)
    assert statistics.stdev(gaps_s) / statistics.mean(gaps_s) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    ("attainments", "capacity"),
    [
        ([1.0, 0.95, 0.85], 2.5),
        ([1.0, 0.9, 0.5], 2.0),
        ([1.0, 0.8, 0.95], 1.5),
        ([1.0, 1.0, 1.0], 3.0),
        ([0.7], 1.0),
    ],
    ids=["between", "just_held", "first_failure_counts", "never_failed", "never_held"],
)
def test_capacity_is_the_highest_rate_that_meets_the_slos(
    attainments: list[float], capacity: float
) -> None:
    tried = [
        TriedRate(per_s=float(at), attainment=value)
        for at, value in enumerate(attainments, start=1)
    ]
    assert capacity_per_s(tried) == pytest.approx(capacity)


def test_lengths_have_the_traces_mean_and_quantiles_even_in_a_short_cell() -> None:
    lengths = draw_lengths(200, 1.0, random.Random(3))
    prompts = sorted(one.prompt_tokens for one in lengths)
    outputs = sorted(one.output_tokens for one in lengths)
    assert statistics.mean(prompts) == pytest.approx(1632, rel=0.03)
    assert statistics.mean(outputs) == pytest.approx(106, rel=0.1)
    assert prompts[100] == pytest.approx(928, rel=0.05)
    assert outputs[100] == pytest.approx(41, rel=0.15)


def test_scaled_lengths_never_leave_a_request_without_a_second_token() -> None:
    lengths = draw_lengths(500, 0.1, random.Random(3))
    assert min(one.output_tokens for one in lengths) == 2
    assert min(one.prompt_tokens for one in lengths) == 8


def test_sessions_are_those_of_the_repeat_and_some_calls_switch() -> None:
    sessions = plan_sessions(1, ["small", "large"], FULL)
    assert sessions == plan_sessions(1, ["small", "large"], FULL)
    assert sessions != plan_sessions(2, ["small", "large"], FULL)
    assert len(sessions) == FULL.slots * FULL.sessions_per_slot
    assert len({one.key for one in sessions}) == len(sessions)
    switches = [one.is_switch(at) for one in sessions for at in range(len(one.calls))]
    assert 0.25 < sum(switches) / len(switches) < 0.6
    assert not any(one.is_switch(0) for one in sessions)
    assert all(0 < call.gap_s <= FULL.gap_max_s for one in sessions for call in one.calls)


def test_without_switching_a_session_stays() -> None:
    sessions = plan_sessions(1, ["small", "large"], replace(FULL, switch_probability=0.0))
    assert all(len({call.model for call in one.calls}) == 1 for one in sessions)


def test_the_matrix_has_five_interleaved_repeats_of_what_is_compared() -> None:
    cells = full_matrix()
    assert len({cell.name for cell in cells}) == len(cells)
    for load in (0.3, 0.7):
        for controller in (Controller.OFF, Controller.HARVEST_SLO):
            repeats = [c.repeat for c in cells if (c.load, c.controller) == (load, controller)]
            assert repeats == [1, 2, 3, 4, 5]
    assert [cell.repeat for cell in cells] == sorted(cell.repeat for cell in cells)
    firsts = [c.controller for c in cells if c.load == 0.3][::2]
    assert firsts[:4] == [Controller.OFF, Controller.HARVEST_SLO] * 2
    for controller in (Controller.HARVEST, Controller.REQUEST, Controller.EAGER):
        assert {c.load for c in cells if c.controller is controller} == {0.5, 0.7}
        repeats = {c.repeat for c in cells if c.controller is controller}
        off = {(c.load, c.repeat) for c in cells if c.controller is Controller.OFF}
        assert {(load, repeat) for load in (0.5, 0.7) for repeat in repeats} <= off


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ([], ["load0.5-off-r1", "load0.5-harvest-slo-r1"]),
        (["controller=off"], ["load0.5-off-r1"]),
        (["load=0.5,controller=off", "controller=harvest-slo"], None),
        (["load=0.7"], []),
    ],
    ids=["all", "one", "either", "none"],
)
def test_only_chooses_cells(filters: list[str], names: list[str] | None) -> None:
    expected = [cell.name for cell in smoke_matrix()] if names is None else names
    assert [cell.name for cell in chosen(smoke_matrix(), filters)] == expected


@pytest.mark.parametrize("text", ["loud=0.3", "load", "load="])
def test_a_filter_that_names_nothing_is_an_error(text: str) -> None:
    with pytest.raises(FilterInvalid, match="load"):
        chosen(smoke_matrix(), [text])
