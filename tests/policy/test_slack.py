"""Algorithm 1: tables of decisions, and the bounds that hold over any history."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.slack import (
    AUTO,
    Accrual,
    JobLoad,
    SlackController,
    SlackParams,
    SlackReason,
    StepLoad,
    cap_s,
    credit_after_s,
    decode_due_s,
    prefill_slack_s,
)
from policy.step_time import Batch, StepTimeCoefficients, StepTimeModel
from policy.vocabulary import Controller, Role, Slo

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
A_JOB = JobLoad(missing_tokens=5_000, context_tokens=0, probability=1.0)


class InFlight(NamedTuple):
    """One request in flight, by what it means for the decision."""

    slack_s: float
    routed: bool = False
    tpot_s: float = 1.0


def a_load(*requests: InFlight, **changes: Any) -> StepLoad:
    """Ten tokens of each request are planned."""
    load = StepLoad(
        now_s=NOW_S,
        waiting_requests=0,
        admission_blocked=False,
        busy=bool(requests),
        carries_routed=any(request.routed for request in requests),
        min_tpot_s=min((request.tpot_s for request in requests), default=inf),
        min_slack_s=min((r.slack_s for r in requests if not r.routed), default=inf),
        planned=Batch(len(requests), 10 * len(requests)),
        free_shadow_tokens=10_000,
        jobs=(A_JOB,),
    )
    return load._replace(**changes)


def a_job(missing_tokens: int, **changes: Any) -> JobLoad:
    return A_JOB._replace(missing_tokens=missing_tokens, **changes)


def tokens_planned(tokens: int) -> Batch:
    return Batch(1, tokens)


def a_controller(
    credit_s: float = 0.0,
    **changes: Any,
) -> SlackController:
    controller = SlackController(replace(PARAMS, **changes))
    if credit_s:
        controller.observe(credit_s / controller.params.delta, True, True, 0.0)
    return controller


ROUTED = InFlight(0.0, routed=True)
ROUTED_FAST = InFlight(0.0, routed=True, tpot_s=0.2)
FAST_80_MS = InFlight(0.08, tpot_s=0.1)
PREFILLING = InFlight(1.8, tpot_s=0.01)
ON_P = {"role": Role.PREFILL}
STARTED = A_JOB._replace(started=True)


@pytest.mark.parametrize(
    ("changes", "load", "tokens", "reason"),
    [
        ({}, a_load(waiting_requests=1), 0, SlackReason.FOREGROUND_WAITING),
        ({}, a_load(admission_blocked=True), 0, SlackReason.ADMISSION_BLOCKED),
        ({}, a_load(jobs=()), 0, SlackReason.NO_JOB),
        ({"controller": Controller.OFF}, a_load(), 0, SlackReason.OFF),
        ({}, a_load(), 299, SlackReason.GRANTED),
        ({"iteration_cap_s": 0.0}, a_load(), 99, SlackReason.GRANTED),
        ({}, a_load(in_flight_s=0.15), 149, SlackReason.GRANTED),
        ({}, a_load(free_shadow_tokens=50), 50, SlackReason.GRANTED),
        ({}, a_load(free_shadow_tokens=15), 0, SlackReason.NO_SHADOW_KV),
        ({}, a_load(free_shadow_tokens=-4), 0, SlackReason.NO_SHADOW_KV),
        # The largest chunk is one of a busy iteration; an idle one is as long as its cap.
        ({"max_chunk_tokens": 20}, a_load(), 299, SlackReason.GRANTED),
        ({"max_chunk_tokens": 20}, a_load(InFlight(0.1)), 20, SlackReason.GRANTED),
        ({}, a_load(jobs=(a_job(5),)), 5, SlackReason.GRANTED),
        # Busy: min(beta * T, cap, slack), of which ten tokens are planned already.
        ({}, a_load(InFlight(0.1)), 89, SlackReason.GRANTED),
        ({}, a_load(InFlight(5.0)), 289, SlackReason.GRANTED),
        ({"iteration_cap_s": 9.0}, a_load(InFlight(5.0)), 489, SlackReason.GRANTED),
        ({}, a_load(FAST_80_MS), 39, SlackReason.GRANTED),
        ({}, a_load(InFlight(0.1), InFlight(0.2)), 79, SlackReason.GRANTED),
        ({}, a_load(InFlight(0.02)), 0, SlackReason.BELOW_MINIMUM),
        ({}, a_load(InFlight(0.02), jobs=(a_job(9),)), 9, SlackReason.GRANTED),
        ({}, a_load(InFlight(-1.0)), 0, SlackReason.NO_SLACK),
        ({}, a_load(InFlight(0.1), in_flight_s=0.05), 39, SlackReason.GRANTED),
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
        (0.05, a_load(ROUTED, planned=tokens_planned(100)), 50, SlackReason.GRANTED),
        # The total stays under beta * T of the routed request itself ...
        (0.09, a_load(ROUTED_FAST, planned=tokens_planned(60)), 39, SlackReason.GRANTED),
        (0.09, a_load(ROUTED_FAST, planned=tokens_planned(100)), 0, SlackReason.NO_SLACK),
        # ... and under the slack of the normal ones beside it; its own slack (0) does not count.
        (0.09, a_load(ROUTED, InFlight(0.06)), 39, SlackReason.GRANTED),
        (0.03, a_load(ROUTED, InFlight(0.06)), 30, SlackReason.GRANTED),
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
    late = a_load(InFlight(-5.0))
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
    load = a_load(jobs=(A_JOB._replace(probability=probability),))
    assert a_controller(controller=Controller.PREDICTIVE).grant(load, PER_TOKEN).reason is reason


def test_a_grant_goes_on_to_the_later_jobs() -> None:
    load = a_load(
        jobs=(a_job(20), a_job(30, probability=0.5), a_job(500, probability=0.1)),
    )
    assert a_controller().grant(load, PER_TOKEN).tokens == 299
    assert a_controller(controller=Controller.PREDICTIVE).grant(load, PER_TOKEN).tokens == 50


def test_a_job_that_does_not_fit_whole_ends_the_grant() -> None:
    load = a_load(jobs=(a_job(299), a_job(9)))
    assert a_controller().grant(load, PER_TOKEN).tokens == 299


def test_an_early_refusal_predicts_and_budgets_nothing() -> None:
    grant = a_controller().grant(a_load(waiting_requests=1), PER_TOKEN)
    assert (grant.budget_s, grant.predicted_s) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("load", "tokens", "reason"),
    [
        (a_load(ROUTED, InFlight(-9.0)), 5000, SlackReason.GRANTED),
        (a_load(free_shadow_tokens=600), 600, SlackReason.GRANTED),
        (a_load(jobs=(a_job(7),)), 7, SlackReason.GRANTED),
        (a_load(waiting_requests=1), 0, SlackReason.FOREGROUND_WAITING),
        (a_load(waiting_requests=1, jobs=(STARTED,)), 5000, SlackReason.GRANTED),
        (a_load(free_shadow_tokens=0), 0, SlackReason.NO_SHADOW_KV),
    ],
)
def test_request_looks_at_the_waiting_queue_and_at_nothing_else(
    load: StepLoad, tokens: int, reason: SlackReason
) -> None:
    for role in Role:
        controller = a_controller(controller=Controller.REQUEST, role=role)
        grant = controller.grant(load._replace(jobs=(*load.jobs, a_job(9))), PER_TOKEN)
        assert (grant.tokens, grant.reason) == (tokens, reason)


def test_eager_waits_for_nobody() -> None:
    load = a_load(ROUTED, waiting_requests=3, admission_blocked=True, jobs=(a_job(20), a_job(9)))
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
    first = controller.grant(a_load(ROUTED), PER_TOKEN)
    assert first.tokens in (49, 50)
    assert first.charge_s == pytest.approx(0.001 * first.tokens)
    in_flight = a_load(ROUTED, in_flight_charge_s=first.charge_s)
    assert controller.grant(in_flight, PER_TOKEN).tokens == 0
    controller.observe(0.06, False, True, 0.05)
    assert controller.grant(a_load(ROUTED), PER_TOKEN).reason is SlackReason.NO_CREDIT


@pytest.mark.parametrize(
    ("earned_s", "changes", "credit_s"),
    [
        (0.05, {"beta": 0.4}, 0.05),
        (0.05, {"beta": 0.1}, 0.02),
        (0.05, {"controller": Controller.HARVEST}, 0.0),
        (-0.15, {"controller": Controller.HARVEST}, -0.15),
    ],
    ids=["kept", "up_to_the_new_cap", "earned_by_other_rules", "a_debt_stays"],
)
def test_new_parameters_leave_the_credit_that_they_would_have_allowed(
    earned_s: float, changes: dict[str, Any], credit_s: float
) -> None:
    controller = a_controller(max(earned_s, 0.0))
    controller.observe(0.2, False, True, max(-earned_s, 0.0))
    controller.change(replace(PARAMS, **changes))
    assert controller.credit_s == pytest.approx(credit_s)
    controller.observe(1e6, True, True, 0.0)
    one_cap_s = controller.cap_s(PARAMS.slo.tpot_s, busy=True)
    assert controller.credit_s == pytest.approx(one_cap_s)
    assert one_cap_s == pytest.approx(0.2 * controller.params.beta)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beta": 0.0}, "shadow.beta must be > 0 and <= 1, got 0.0"),
        ({"beta": 1.5}, "shadow.beta must be > 0 and <= 1, got 1.5"),
        ({"delta": -0.1}, "shadow.delta must be >= 0 and <= 1, got -0.1"),
        ({"margin": 1.0}, "shadow.margin must be >= 0 and < 1, got 1.0"),
        ({"margin": float("nan")}, "shadow.margin must be >= 0 and < 1, got nan"),
        ({"n_min_tokens": 0}, "shadow.n_min_tokens must be >= 1, got 0"),
        ({"reread_share": 0.0}, "shadow.reread_share must be > 0 and < 1, got 0.0"),
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
    # Eleven tokens are due at 0.9 * 0.2 * 11 = 1.98 s after the first one.
    assert decode_due_s(0.1, 0.2, 10, 10.0) == pytest.approx(11.98)
    # 1.8 s of TTFT, of which 1 s has passed and 0.3 s of prefill is left after this iteration.
    assert prefill_slack_s(0.1, 2.0, 11.0, 10.0, 0.3) == pytest.approx(0.5)


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
        model.observe(1000.0, Batch(1, 16))
    controller = a_controller(iteration_cap_s=0.05)  # holds not one token of such a model
    grants = []
    for tick in range(100):
        grants.append(controller.grant(a_load(now_s=NOW_S + tick / 10), model).tokens)
        if grants[-1]:
            model.observe(0.001 * (grants[-1] + 1), Batch(1, grants[-1]))
    assert grants[0] == 0
    assert grants[-1] >= PARAMS.n_min_tokens


def test_what_iterations_have_shown_since_is_not_forgotten() -> None:
    model = StepTimeModel(PER_TOKEN_COEFFICIENTS, trusted_tokens=PARAMS.n_min_tokens)
    for _ in range(3):
        model.observe(1000.0, Batch(1, 16))
    controller, slow = a_controller(iteration_cap_s=0.05), model.base_factor
    assert controller.grant(a_load(), model).tokens == 0
    controller.observe(1000.0, True, False, 0.0)  # an hour of traffic, and no job beside it
    assert controller.grant(a_load(now_s=NOW_S + 3600), model).tokens == 0
    assert model.base_factor == slow


def test_a_busy_instance_learns_from_its_iterations_and_not_from_time() -> None:
    model = StepTimeModel(PER_TOKEN_COEFFICIENTS, trusted_tokens=PARAMS.n_min_tokens)
    for _ in range(3):
        model.observe(1000.0, Batch(1, 16))
    controller = a_controller()
    for tick in range(100):
        load = a_load(InFlight(5.0), now_s=NOW_S + tick / 10)
        assert controller.grant(load, model).tokens == 0


def test_credit_is_capped_before_it_is_spent() -> None:
    assert credit_after_s(0.09, 0.05, 0.02, 0.1) == pytest.approx(0.08)


REQUESTS = st.builds(
    InFlight,
    slack_s=st.floats(-1, 10),
    routed=st.booleans(),
    tpot_s=st.floats(0.01, 1),
)
JOBS = st.builds(
    JobLoad,
    missing_tokens=st.integers(1, 5000),
    context_tokens=st.integers(0, 100_000),
    probability=st.floats(0, 1),
)


@st.composite
def loads(draw: st.DrawFn) -> StepLoad:
    requests = draw(st.lists(REQUESTS, max_size=4))
    planned = Batch(
        len(requests),
        draw(st.integers(1, 500)),
        draw(st.floats(0, 1e6)),
        draw(st.integers(0, 10**5)),
    )
    return a_load(
        *requests,
        waiting_requests=draw(st.sampled_from([0, 0, 0, 1])),
        admission_blocked=draw(st.sampled_from([False, False, False, True])),
        planned=planned if requests else Batch(),
        free_shadow_tokens=draw(st.integers(-10, 10_000)),
        jobs=tuple(draw(st.lists(JOBS, max_size=4))),
        in_flight_s=draw(st.sampled_from([0.0, 0.0, 0.02, 0.2])),
    )


REAL_TIMES = StepTimeModel(
    StepTimeCoefficients(
        fixed_s=0.005,
        s_per_request=0.001,
        s_per_token=0.0005,
        s_per_token_context=1e-8,
        s_per_context_token=1e-7,
    )
)
BUDGETED = [Controller.HARVEST, Controller.HARVEST_SLO, Controller.PREDICTIVE]


@given(
    load=loads(),
    controller=st.sampled_from(BUDGETED),
    role=st.sampled_from(list(Role)),
    n_min_tokens=st.sampled_from([16, AUTO]),
    credit_s=st.floats(0, 0.1),
)
def test_a_grant_is_always_within_every_limit(
    load: StepLoad, controller: Controller, role: Role, n_min_tokens: Any, credit_s: float
) -> None:
    slack = a_controller(credit_s, controller=controller, role=role, n_min_tokens=n_min_tokens)
    grant = slack.grant(load, REAL_TIMES)
    if grant.tokens == 0:
        assert grant.reason is not SlackReason.GRANTED
        return
    assert grant.reason is SlackReason.GRANTED
    assert grant.predicted_s <= grant.budget_s
    cap = slack.cap_s(load.min_tpot_s, busy=load.busy)
    assert grant.predicted_s + load.in_flight_s <= cap + 1e-12
    assert grant.tokens <= load.free_shadow_tokens
    assert not load.busy or grant.tokens <= PARAMS.max_chunk_tokens
    assert grant.tokens >= min(16, load.jobs[0].missing_tokens) or n_min_tokens == AUTO
    assert load.waiting_requests == 0
    assert not load.admission_blocked
    if load.carries_routed or (load.busy and controller is not Controller.HARVEST_SLO):
        extra_s = grant.predicted_s - REAL_TIMES.predicted_s(load.planned)
        assert extra_s <= slack.credit_s + 1e-12


@pytest.mark.parametrize(
    ("changes", "load", "reason"),
    [
        ({}, a_load(jobs=()), None),
        ({}, a_load(InFlight(0.1), jobs=()), None),
        ({}, a_load(InFlight(0.005), jobs=()), SlackReason.NO_SLACK),
        ({}, a_load(ROUTED, jobs=()), SlackReason.NO_CREDIT),
        ({"controller": Controller.HARVEST}, a_load(InFlight(9.0), jobs=()), SlackReason.NO_CREDIT),
        ({}, a_load(waiting_requests=1, jobs=()), SlackReason.FOREGROUND_WAITING),
        ({}, a_load(admission_blocked=True, jobs=()), SlackReason.ADMISSION_BLOCKED),
        (ON_P, a_load(ROUTED, jobs=()), SlackReason.ROUTED_IN_BATCH),
        # What these refuse, or look at, is a matter of the jobs.
        ({"controller": Controller.OFF}, a_load(waiting_requests=1, jobs=()), None),
        ({"controller": Controller.REQUEST}, a_load(waiting_requests=1, jobs=()), None),
        ({"controller": Controller.EAGER}, a_load(waiting_requests=1, jobs=()), None),
    ],
)
def test_a_busy_iteration_without_time_is_refused_before_the_jobs_are_known(
    changes: dict[str, Any], load: StepLoad, reason: SlackReason | None
) -> None:
    refusal = a_controller(**changes).refusal(load, PER_TOKEN)
    assert (refusal.reason if refusal else None) == reason


@given(
    load=loads(),
    controller=st.sampled_from(list(Controller)),
    role=st.sampled_from(list(Role)),
    n_min_tokens=st.sampled_from([16, AUTO]),
    credit_s=st.floats(0, 0.1),
)
def test_nothing_is_refused_before_the_jobs_are_known_that_would_be_granted_to_one(
    load: StepLoad, controller: Controller, role: Role, n_min_tokens: Any, credit_s: float
) -> None:
    slack = a_controller(credit_s, controller=controller, role=role, n_min_tokens=n_min_tokens)
    refusal = slack.refusal(load._replace(free_shadow_tokens=10_000, jobs=()), REAL_TIMES)
    if refusal is None:
        return
    grant = slack.grant(load, REAL_TIMES)
    assert grant.tokens == refusal.tokens == 0
    of_the_jobs = (SlackReason.NO_JOB, SlackReason.UNLIKELY, SlackReason.NO_SHADOW_KV)
    assert grant.reason in of_the_jobs or grant == refusal


WITH_READS = StepTimeCoefficients(
    fixed_s=0.02,
    s_per_request=0.001,
    s_per_token=0.001,
    s_per_token_context=0.0,
    s_per_context_token=1e-6,
)
LONG = a_job(5_000, context_tokens=10_000)


@pytest.mark.parametrize(
    ("changes", "credit_s", "load", "tokens", "reason"),
    [
        # Every chunk costs 1 ms + 10 ms of reading: 33 tokens make that a quarter of it.
        ({}, 0.0, a_load(InFlight(0.2), jobs=(LONG,)), 159, SlackReason.GRANTED),
        ({}, 0.0, a_load(InFlight(0.07), jobs=(LONG,)), 0, SlackReason.BELOW_MINIMUM),
        ({"reread_share": 0.5}, 0.0, a_load(InFlight(0.07), jobs=(LONG,)), 28, "granted"),
        ({}, 0.0, a_load(InFlight(0.07), jobs=(a_job(12, context_tokens=10_000),)), 12, "granted"),
        ({}, 0.0, a_load(InFlight(0.07), jobs=(A_JOB,)), 38, SlackReason.GRANTED),
        ({}, 0.0, a_load(InFlight(0.04), jobs=(A_JOB,)), 0, SlackReason.BELOW_MINIMUM),
        ({}, 0.0, a_load(free_shadow_tokens=40, jobs=(LONG,)), 0, SlackReason.NO_SHADOW_KV),
        # Credit is saved up until it pays for a chunk that is worth it.
        ({}, 0.03, a_load(ROUTED, jobs=(LONG,)), 0, SlackReason.BELOW_MINIMUM),
        ({}, 0.05, a_load(ROUTED, jobs=(LONG,)), 39, SlackReason.GRANTED),
        # Nothing is deferred in the hope of what the cap would not allow either.
        ({"iteration_cap_s": 0.07}, 0.0, a_load(InFlight(9.0), jobs=(LONG,)), 28, "granted"),
        ({"iteration_cap_s": 0.07}, 0.0, a_load(InFlight(0.06), jobs=(LONG,)), 0, "below_minimum"),
        # Idle: the iteration runs for the chunk alone, so its fixed part counts (93 tokens) ...
        ({}, 0.0, a_load(jobs=(LONG,), in_flight_s=0.2), 0, SlackReason.BELOW_MINIMUM),
        ({}, 0.0, a_load(jobs=(LONG,), in_flight_s=0.1), 169, SlackReason.GRANTED),
        # ... unless the cap has no room for more, which it never will.
        ({"iteration_cap_s": 0.09}, 0.0, a_load(jobs=(LONG,)), 59, SlackReason.GRANTED),
    ],
)
def test_the_smallest_chunk_follows_from_what_each_chunk_reads_again(
    changes: dict[str, Any], credit_s: float, load: StepLoad, tokens: int, reason: str
) -> None:
    controller = a_controller(
        credit_s, n_min_tokens=AUTO, slo=Slo(ttft_s=2.0, tpot_s=1.0), **changes
    )
    grant = controller.grant(load, StepTimeModel(WITH_READS))
    assert (grant.tokens, grant.reason) == (pytest.approx(tokens, abs=1), reason)


@pytest.mark.parametrize("n_min_tokens", [AUTO, 4096])
def test_no_chunk_is_deferred_in_the_hope_of_one_that_no_iteration_can_carry(
    n_min_tokens: Any,
) -> None:
    params = replace(PARAMS, n_min_tokens=n_min_tokens, max_chunk_tokens=4096)
    controller = SlackController(params, step_tokens=64)
    load = a_load(jobs=(LONG,), free_shadow_tokens=64)
    assert controller.grant(load, StepTimeModel(WITH_READS)).tokens == 64


@pytest.mark.parametrize(
    ("changes", "load", "tokens", "reason"),
    [
        # 50 ms less 1 + 20 + 10 of reading: 19 tokens, and it will never be more.
        ({"iteration_cap_s": 0.05}, a_load(jobs=(LONG,)), 19, "granted"),
        ({"iteration_cap_s": 0.05, **ON_P}, a_load(jobs=(LONG,)), 19, "granted"),
        ({"iteration_cap_s": 0.03}, a_load(jobs=(LONG,)), 0, "no_slack"),
        # With less in flight there will be room for more.
        ({"iteration_cap_s": 0.05}, a_load(jobs=(LONG,), in_flight_s=0.01), 0, "below_minimum"),
        # The paper's reading, beta * T, defers, and so does a batch that others are in.
        ({"iteration_cap_s": 0.0, "beta": 0.25}, a_load(jobs=(LONG,)), 0, "below_minimum"),
        ({"iteration_cap_s": 0.05}, a_load(InFlight(9.0), jobs=(LONG,)), 0, "below_minimum"),
        ({"iteration_cap_s": 0.05, **ON_P}, a_load(PREFILLING, jobs=(LONG,)), 0, "below_minimum"),
    ],
)
def test_a_slow_idle_instance_computes_what_its_cap_holds_behind_any_context(
    changes: dict[str, Any], load: StepLoad, tokens: int, reason: str
) -> None:
    controller = a_controller(n_min_tokens=32, **changes)
    grant = controller.grant(load, StepTimeModel(WITH_READS))
    assert (grant.tokens, grant.reason) == (pytest.approx(tokens, abs=1), reason)


def test_trust_bounds_the_jobs_of_an_iteration_together() -> None:
    model = StepTimeModel(PER_TOKEN_COEFFICIENTS, trusted_tokens=40)
    for load in (a_load(), a_load(InFlight(0.2))):
        jobs = tuple(a_job(30) for _ in range(3))
        assert a_controller().grant(load._replace(jobs=jobs), model).tokens == 40
