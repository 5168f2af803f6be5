"""Algorithm 1: tables of decisions, and the bounds that hold over any history."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.slack import (
    Accrual,
    JobLoad,
    RequestLoad,
    SlackController,
    SlackParams,
    SlackReason,
    StepLoad,
    cap_s,
    credit_after_s,
    decode_slack_s,
    prefill_slack_s,
)
from policy.step_time import StepTimeCoefficients, StepTimeModel
from policy.vocabulary import Controller, RequestClass, Role, Slo

# 1 ms per token and next to nothing else: a budget in milliseconds reads as tokens.
PER_TOKEN_COEFFICIENTS = StepTimeCoefficients(
    fixed_s=1e-9, s_per_request=0.0, s_per_token=0.001, s_per_token_context=0.0
)
PER_TOKEN = StepTimeModel(PER_TOKEN_COEFFICIENTS)
PARAMS = SlackParams(
    controller=Controller.HARVEST_SLO,
    beta=0.5,
    delta=0.1,
    margin=0.1,
    n_min_tokens=16,
    iteration_cap_s=0.3,
    max_chunk_tokens=1000,
    slo=Slo(ttft_s=2.0, tpot_s=0.2),
    role=Role.COLOCATED,
)
NOW_S = 100.0


def a_decode(slack_s: float, request_class: RequestClass = RequestClass.NORMAL) -> RequestLoad:
    """A decoding request whose slack is `slack_s`: margin 0.1, TPOT 1 s, ten iterations done."""
    return RequestLoad(
        request_class=request_class,
        is_prefill=False,
        arrival_s=0.0,
        first_token_s=NOW_S - 0.9 * 11 + slack_s,
        iterations_since_first_token=10,
        tpot_s=1.0,
    )


def a_load(*requests: RequestLoad, **changes: Any) -> StepLoad:
    load = StepLoad(
        now_s=NOW_S,
        waiting_requests=0,
        admission_blocked=False,
        requests=requests,
        planned_requests=len(requests),
        planned_tokens=10 * len(requests),
        planned_context_token_product=0.0,
        free_shadow_tokens=10_000,
        first_job_missing_tokens=5_000,
        first_job_probability=1.0,
        first_job_context_tokens=0,
    )
    return replace(load, **changes)


def a_controller(
    credit_s: float = 0.0,
    **changes: Any,
) -> SlackController:
    controller = SlackController(replace(PARAMS, **changes))
    if credit_s:
        controller.observe(credit_s / controller.params.delta, True, True, 0.0)
    return controller


ROUTED = a_decode(0.0, RequestClass.ROUTED)
ROUTED_FAST = replace(ROUTED, tpot_s=0.2)
LENT_80_MS = replace(a_decode(0.0), tpot_s=0.1, first_token_s=NOW_S - 0.09 * 11 + 0.08)
PREFILLING = replace(a_decode(0.0), is_prefill=True, arrival_s=NOW_S, tpot_s=0.01)
ON_P = {"role": Role.PREFILL}


@pytest.mark.parametrize(
    ("changes", "load", "tokens", "reason"),
    [
        ({}, a_load(waiting_requests=1), 0, SlackReason.FOREGROUND_WAITING),
        ({}, a_load(admission_blocked=True), 0, SlackReason.ADMISSION_BLOCKED),
        ({}, a_load(first_job_missing_tokens=0), 0, SlackReason.NO_JOB),
        ({"controller": Controller.OFF}, a_load(), 0, SlackReason.OFF),
        ({}, a_load(), 299, SlackReason.GRANTED),
        ({"iteration_cap_s": 0.0}, a_load(), 99, SlackReason.GRANTED),
        ({}, a_load(batches_in_flight=2), 149, SlackReason.GRANTED),
        ({}, a_load(free_shadow_tokens=50), 50, SlackReason.GRANTED),
        ({}, a_load(free_shadow_tokens=15), 0, SlackReason.NO_SHADOW_KV),
        ({}, a_load(free_shadow_tokens=-4), 0, SlackReason.NO_SHADOW_KV),
        ({"max_chunk_tokens": 20}, a_load(), 20, SlackReason.GRANTED),
        ({}, a_load(first_job_missing_tokens=5), 5, SlackReason.GRANTED),
        # Busy: min(beta * T, cap, slack), of which ten tokens are planned already.
        ({}, a_load(a_decode(0.1)), 89, SlackReason.GRANTED),
        ({}, a_load(a_decode(5.0)), 289, SlackReason.GRANTED),
        ({"iteration_cap_s": 9.0}, a_load(a_decode(5.0)), 489, SlackReason.GRANTED),
        ({}, a_load(LENT_80_MS), 39, SlackReason.GRANTED),
        ({}, a_load(a_decode(0.1), a_decode(0.2)), 79, SlackReason.GRANTED),
        ({}, a_load(a_decode(0.02)), 0, SlackReason.BELOW_MINIMUM),
        ({}, a_load(a_decode(0.02), first_job_missing_tokens=9), 9, SlackReason.GRANTED),
        ({}, a_load(a_decode(-1.0)), 0, SlackReason.NO_SLACK),
        ({}, a_load(a_decode(0.1), batches_in_flight=2), 39, SlackReason.GRANTED),
        # P: its own cap, TTFT slack, and nothing beside a routed prefill.
        (ON_P, a_load(), 299, SlackReason.GRANTED),
        (ON_P, a_load(PREFILLING), 289, SlackReason.GRANTED),
        (ON_P, a_load(ROUTED), 0, SlackReason.ROUTED_IN_BATCH),
    ],
)
def test_harvest_slo_without_credit(
    changes: dict[str, Any], load: StepLoad, tokens: int, reason: SlackReason
) -> None:
    grant = a_controller(**changes).grant(load, PER_TOKEN)
    assert (grant.tokens, grant.reason) == (tokens, reason)


@pytest.mark.parametrize(
    ("credit_s", "load", "tokens", "reason"),
    [
        (0.0, a_load(ROUTED), 0, SlackReason.NO_CREDIT),
        (0.01, a_load(ROUTED), 0, SlackReason.BELOW_MINIMUM),
        # The credit pays for the extra time, not for the iteration.
        (0.05, a_load(ROUTED, planned_tokens=100), 50, SlackReason.GRANTED),
        # The total stays under beta * T of the routed request itself ...
        (0.09, a_load(ROUTED_FAST, planned_tokens=60), 39, SlackReason.GRANTED),
        (0.09, a_load(ROUTED_FAST, planned_tokens=100), 0, SlackReason.NO_SLACK),
        # ... and under the slack of the normal ones beside it; its own slack (0) does not count.
        (0.09, a_load(ROUTED, a_decode(0.06)), 39, SlackReason.GRANTED),
        (0.03, a_load(ROUTED, a_decode(0.06)), 30, SlackReason.GRANTED),
    ],
)
def test_a_routed_call_is_stretched_by_credit_alone(
    credit_s: float, load: StepLoad, tokens: int, reason: SlackReason
) -> None:
    grant = a_controller(credit_s).grant(load, PER_TOKEN)
    # Fractions of a nanosecond decide whether the last token fits.
    assert grant.tokens == pytest.approx(tokens, abs=1)
    assert grant.reason is reason


@pytest.mark.parametrize("controller", [Controller.HARVEST, Controller.PREDICTIVE])
def test_harvest_stretches_every_busy_iteration_by_credit_and_ignores_slack(
    controller: Controller,
) -> None:
    late = a_load(a_decode(-5.0))
    assert a_controller(0.05, controller=controller).grant(late, PER_TOKEN).tokens in (49, 50)
    assert a_controller(controller=controller).grant(late, PER_TOKEN).reason is (
        SlackReason.NO_CREDIT
    )
    assert a_controller(controller=controller).grant(a_load(), PER_TOKEN).tokens == 299


@pytest.mark.parametrize(
    ("probability", "reason"),
    [(0.24, SlackReason.UNLIKELY), (0.25, SlackReason.GRANTED)],
)
def test_predictive_is_gated_by_probability(probability: float, reason: SlackReason) -> None:
    load = a_load(first_job_probability=probability)
    assert a_controller(controller=Controller.PREDICTIVE).grant(load, PER_TOKEN).reason is reason


def test_a_grant_goes_on_to_the_later_jobs() -> None:
    later = (
        JobLoad(missing_tokens=30, context_tokens=0, probability=0.5),
        JobLoad(missing_tokens=500, context_tokens=0, probability=0.1),
    )
    load = a_load(first_job_missing_tokens=20, later_jobs=later)
    assert a_controller().grant(load, PER_TOKEN).tokens == 299
    assert a_controller(controller=Controller.PREDICTIVE).grant(load, PER_TOKEN).tokens == 50


def test_a_job_that_does_not_fit_whole_ends_the_grant() -> None:
    later = (JobLoad(missing_tokens=9, context_tokens=0, probability=0.5),)
    load = a_load(first_job_missing_tokens=299, later_jobs=later)
    assert a_controller().grant(load, PER_TOKEN).tokens == 299


def test_an_early_refusal_predicts_and_budgets_nothing() -> None:
    grant = a_controller().grant(a_load(waiting_requests=1), PER_TOKEN)
    assert (grant.budget_s, grant.predicted_s) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("load", "tokens", "reason"),
    [
        (a_load(ROUTED, a_decode(-9.0)), 1000, SlackReason.GRANTED),
        (a_load(first_job_missing_tokens=7), 7, SlackReason.GRANTED),
        (a_load(waiting_requests=1), 0, SlackReason.FOREGROUND_WAITING),
        (a_load(waiting_requests=1, first_job_started=True), 1000, SlackReason.GRANTED),
        (a_load(free_shadow_tokens=0), 0, SlackReason.NO_SHADOW_KV),
    ],
)
def test_request_looks_at_the_waiting_queue_and_at_nothing_else(
    load: StepLoad, tokens: int, reason: SlackReason
) -> None:
    later = (JobLoad(missing_tokens=9, context_tokens=0, probability=0.5),)
    for role in Role:
        controller = a_controller(controller=Controller.REQUEST, role=role)
        grant = controller.grant(replace(load, later_jobs=later), PER_TOKEN)
        assert (grant.tokens, grant.reason) == (tokens, reason)


def test_eager_waits_for_nobody() -> None:
    later = (JobLoad(missing_tokens=9, context_tokens=0, probability=0.5),)
    load = a_load(
        ROUTED,
        waiting_requests=3,
        admission_blocked=True,
        first_job_missing_tokens=20,
        later_jobs=later,
    )
    grant = a_controller(controller=Controller.EAGER).grant(load, PER_TOKEN)
    assert (grant.tokens, grant.reason) == (29, SlackReason.GRANTED)


@pytest.mark.parametrize(
    ("changes", "observed", "credit_s"),
    [
        ({}, (1.0, True, True, 0.0), 0.1),
        ({}, (1.0, False, True, 0.0), 0.0),
        ({}, (1.0, True, False, 0.0), 0.0),
        ({"accrual": Accrual.ANY}, (1.0, True, False, 0.0), 0.1),
        ({"controller": Controller.HARVEST}, (1.0, True, False, 0.0), 0.1),
        (ON_P, (1.0, True, True, 0.0), 0.0),
        ({}, (50.0, True, True, 0.0), 0.1),
        # Shadow tokens: spent where a routed call was stretched, and nothing earned.
        ({}, (1.0, True, True, 0.02), -0.02),
        ({}, (1.0, True, False, 0.02), 0.0),
        ({"controller": Controller.HARVEST}, (1.0, False, False, 0.02), -0.02),
    ],
)
def test_credit_is_earned_and_spent(
    changes: dict[str, Any], observed: tuple[float, bool, bool, float], credit_s: float
) -> None:
    controller = a_controller(**changes)
    controller.observe(*observed)
    assert controller.credit_s == pytest.approx(credit_s)


def test_a_debt_is_earned_back_before_anything_is_granted() -> None:
    controller = a_controller(0.05)
    controller.observe(0.2, False, True, 0.15)  # predicted 0.05, took 0.15
    assert controller.grant(a_load(ROUTED), PER_TOKEN).reason is SlackReason.NO_CREDIT
    controller.observe(1.5, True, True, 0.0)
    assert controller.grant(a_load(ROUTED), PER_TOKEN).tokens in (49, 50)


def test_credit_of_an_iteration_that_is_still_in_flight_is_not_spent_twice() -> None:
    controller = a_controller(0.05)
    load = a_load(ROUTED, batches_in_flight=2)
    assert controller.grant(load, PER_TOKEN).tokens in (49, 50)
    assert controller.grant(load, PER_TOKEN).tokens == 0
    controller.observe(0.06, False, True, 0.05)
    assert controller.grant(load, PER_TOKEN).reason is SlackReason.NO_CREDIT


def test_a_grant_that_was_never_used_is_held_back_only_for_the_iterations_in_flight() -> None:
    controller = a_controller(0.05)
    load = a_load(ROUTED, batches_in_flight=2)
    assert controller.grant(load, PER_TOKEN).tokens > 0
    assert controller.grant(load, PER_TOKEN).tokens == 0
    assert controller.grant(load, PER_TOKEN).tokens > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beta": 0.0}, "shadow.beta must be > 0 and <= 1, got 0.0"),
        ({"beta": 1.5}, "shadow.beta must be > 0 and <= 1, got 1.5"),
        ({"delta": -0.1}, "shadow.delta must be >= 0 and <= 1, got -0.1"),
        ({"margin": 1.0}, "shadow.margin must be >= 0 and < 1, got 1.0"),
        ({"margin": float("nan")}, "shadow.margin must be >= 0 and < 1, got nan"),
        ({"n_min_tokens": 0}, "shadow.n_min_tokens must be >= 1, got 0"),
        ({"iteration_cap_s": -1.0}, "shadow.iteration_cap_s must be >= 0, got -1.0"),
        (
            {"max_chunk_tokens": 15},
            "shadow.max_chunk_tokens must be >= n_min_tokens (16), or no chunk would ever be "
            "granted, got 15",
        ),
        (
            {"iteration_cap_s": 0.0, "role": Role.PREFILL},
            "shadow.iteration_cap_s must be > 0 on a prefill instance, got 0",
        ),
    ],
)
def test_a_parameter_outside_its_limits_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        replace(PARAMS, **changes)


def test_slack_follows_the_paper() -> None:
    # Eleven tokens are due at 0.9 * 0.2 * 11 = 1.98 s after the first one; 1.5 s have passed.
    assert decode_slack_s(0.1, 0.2, 10, 11.5, 10.0) == pytest.approx(0.48)
    # 1.8 s of TTFT, of which 1 s has passed and 0.3 s of prefill is left after this iteration.
    assert prefill_slack_s(0.1, 2.0, 11.0, 10.0, 0.3) == pytest.approx(0.5)


def test_defaults_of_the_instance_stand_in_for_a_missing_slo() -> None:
    fresh = RequestLoad(request_class=RequestClass.NORMAL, is_prefill=True, arrival_s=NOW_S - 1.75)
    assert a_controller().grant(a_load(fresh), PER_TOKEN).tokens == pytest.approx(40, abs=1)
    decoding = RequestLoad(
        request_class=RequestClass.NORMAL, is_prefill=False, arrival_s=0.0, first_token_s=NOW_S
    )
    assert a_controller().grant(a_load(decoding), PER_TOKEN).tokens == pytest.approx(90, abs=1)


def test_a_prefilling_request_lends_its_ttft_slack() -> None:
    marked = RequestLoad(
        request_class=RequestClass.NORMAL,
        is_prefill=True,
        arrival_s=NOW_S - 0.5,
        ttft_s=1.0,
        tpot_s=9.0,
        remaining_prefill_s=0.3,
    )
    for role in (Role.COLOCATED, Role.PREFILL):
        grant = a_controller(role=role).grant(a_load(marked), PER_TOKEN)
        assert grant.tokens == pytest.approx(90, abs=1)


@pytest.mark.parametrize(
    ("iteration_cap_s", "prefill", "idle", "expected_s"),
    [
        (0.3, False, False, 0.1),
        (0.05, False, False, 0.05),
        (0.3, False, True, 0.3),
        (0.3, True, False, 0.3),
        (0.0, False, True, 0.1),
        (0.0, False, False, 0.1),
    ],
)
def test_cap(iteration_cap_s: float, prefill: bool, idle: bool, expected_s: float) -> None:
    assert cap_s(0.5, 0.2, iteration_cap_s, prefill, idle) == pytest.approx(expected_s)


def test_an_idle_instance_whose_model_saw_an_outlier_recovers_with_time() -> None:
    model = StepTimeModel(PER_TOKEN_COEFFICIENTS, trusted_tokens=PARAMS.n_min_tokens)
    for _ in range(3):
        model.observe(1000.0, 1, 16, 0)
    controller = a_controller()
    grants = [
        controller.grant(a_load(now_s=NOW_S + tick / 10), model).tokens for tick in range(100)
    ]
    assert grants[0] == 0
    assert grants[-1] >= PARAMS.n_min_tokens


def test_a_busy_instance_learns_from_its_iterations_and_not_from_time() -> None:
    model = StepTimeModel(PER_TOKEN_COEFFICIENTS, trusted_tokens=PARAMS.n_min_tokens)
    for _ in range(3):
        model.observe(1000.0, 1, 16, 0)
    controller = a_controller()
    for tick in range(100):
        load = a_load(a_decode(5.0), now_s=NOW_S + tick / 10)
        assert controller.grant(load, model).tokens == 0


def test_new_parameters_hold_from_the_next_grant_on_and_what_was_earned_stays() -> None:
    controller = SlackController(PARAMS)
    controller.observe(0.5, was_decode_only=True, carried_routed=True, shadow_extra_s=0.0)
    assert controller.credit_s == pytest.approx(0.05)
    controller.change(replace(PARAMS, controller=Controller.OFF))
    assert controller.grant(a_load(), PER_TOKEN).reason is SlackReason.OFF
    assert controller.credit_s == pytest.approx(0.05)


def test_credit_beyond_a_smaller_cap_is_lost() -> None:
    controller = SlackController(PARAMS)
    controller.observe(0.5, was_decode_only=True, carried_routed=True, shadow_extra_s=0.0)
    controller.change(replace(PARAMS, beta=0.1))
    assert controller.credit_s == pytest.approx(0.02)
    controller.change(PARAMS)
    assert controller.credit_s == pytest.approx(0.02)


def test_credit_is_capped_before_it_is_spent() -> None:
    assert credit_after_s(0.09, 0.05, 0.02, 0.1) == pytest.approx(0.08)


REQUESTS = st.builds(
    RequestLoad,
    request_class=st.sampled_from([RequestClass.NORMAL, RequestClass.ROUTED]),
    is_prefill=st.booleans(),
    arrival_s=st.floats(95, 100),
    first_token_s=st.floats(95, 100),
    iterations_since_first_token=st.integers(0, 100),
    remaining_prefill_s=st.floats(0, 1),
    ttft_s=st.none() | st.floats(0.1, 10),
    tpot_s=st.none() | st.floats(0.01, 1),
)
JOBS = st.builds(
    JobLoad,
    missing_tokens=st.integers(1, 5000),
    context_tokens=st.integers(0, 100_000),
    probability=st.floats(0, 1),
)


@st.composite
def loads(draw: st.DrawFn) -> StepLoad:
    requests = tuple(draw(st.lists(REQUESTS, max_size=4)))
    return StepLoad(
        now_s=NOW_S,
        waiting_requests=draw(st.sampled_from([0, 0, 0, 1])),
        admission_blocked=draw(st.sampled_from([False, False, False, True])),
        requests=requests,
        planned_requests=len(requests),
        planned_tokens=draw(st.integers(0, 500)) if requests else 0,
        planned_context_token_product=draw(st.floats(0, 1e6)) if requests else 0.0,
        free_shadow_tokens=draw(st.integers(-10, 10_000)),
        first_job_missing_tokens=draw(st.integers(0, 5000)),
        first_job_probability=draw(st.floats(0, 1)),
        first_job_context_tokens=draw(st.integers(0, 100_000)),
        later_jobs=tuple(draw(st.lists(JOBS, max_size=3))),
        batches_in_flight=draw(st.integers(1, 2)),
    )


REAL_TIMES = StepTimeModel(
    StepTimeCoefficients(
        fixed_s=0.005, s_per_request=0.001, s_per_token=0.0005, s_per_token_context=1e-8
    )
)
BUDGETED = [Controller.HARVEST, Controller.HARVEST_SLO, Controller.PREDICTIVE]


@given(
    load=loads(),
    controller=st.sampled_from(BUDGETED),
    role=st.sampled_from(list(Role)),
    credit_s=st.floats(0, 0.1),
)
def test_a_grant_is_always_within_every_limit(
    load: StepLoad, controller: Controller, role: Role, credit_s: float
) -> None:
    slack = a_controller(credit_s, controller=controller, role=role)
    grant = slack.grant(load, REAL_TIMES)
    if grant.tokens == 0:
        assert grant.reason is not SlackReason.GRANTED
        return
    assert grant.reason is SlackReason.GRANTED
    assert grant.predicted_s <= grant.budget_s
    assert grant.predicted_s <= max(PARAMS.iteration_cap_s, PARAMS.beta) / load.batches_in_flight
    assert grant.tokens <= min(load.free_shadow_tokens, PARAMS.max_chunk_tokens)
    assert grant.tokens >= min(PARAMS.n_min_tokens, load.first_job_missing_tokens)
    assert load.waiting_requests == 0
    assert not load.admission_blocked
    if any(request.request_class is RequestClass.ROUTED for request in load.requests):
        base_s = REAL_TIMES.predicted_s(
            load.planned_requests, load.planned_tokens, load.planned_context_token_product
        )
        assert grant.predicted_s - base_s <= slack.credit_s + 1e-12


@given(
    histories=st.lists(st.tuples(loads(), st.booleans()), min_size=1, max_size=60),
    batches_in_flight=st.integers(1, 3),
)
def test_over_any_window_routed_calls_lose_at_most_what_was_earned_and_one_cap(
    histories: list[tuple[StepLoad, bool]], batches_in_flight: int
) -> None:
    """Every iteration is built before the (batches_in_flight - 1) before it were observed."""
    slack = a_controller(delta=0.5, n_min_tokens=1)
    in_flight: deque[tuple[float, bool, bool, float]] = deque()
    balance_s = [0.0]  # spent less earned on routed iterations, over the history

    def observe(step_s: float, decode_only: bool, routed: bool, extra_s: float) -> None:
        slack.observe(step_s, decode_only, routed, extra_s)
        earned_s = 0.5 * step_s if decode_only and routed and extra_s == 0 else 0.0
        balance_s.append(balance_s[-1] + (extra_s if routed else 0.0) - earned_s)

    for load, decode_only in histories:
        load = replace(load, batches_in_flight=batches_in_flight)
        base_s = REAL_TIMES.predicted_s(
            load.planned_requests, load.planned_tokens, load.planned_context_token_product
        )
        grant = slack.grant(load, REAL_TIMES)
        step_s = grant.predicted_s if grant.tokens else base_s
        routed = any(request.request_class is RequestClass.ROUTED for request in load.requests)
        if load.requests:
            in_flight.append((step_s, decode_only, routed, step_s - base_s))
        if len(in_flight) == batches_in_flight:
            observe(*in_flight.popleft())
    while in_flight:
        observe(*in_flight.popleft())
    one_cap_s = cap_s(PARAMS.beta, PARAMS.slo.tpot_s, PARAMS.iteration_cap_s, False, False)
    lowest_s = balance_s[0]
    for before_s, after_s in pairwise(balance_s):
        lowest_s = min(lowest_s, before_s)
        assert after_s - lowest_s <= one_cap_s + 1e-9
