"""How many shadow tokens one engine iteration carries: Algorithm 1 of the paper, its controllers.

`SlackController.grant` decides for the iteration that is being built, `observe` reports how a
finished one went. The budget of an iteration is in seconds; `policy.step_time` makes it tokens.

Which cap holds (`cap_s`): a prefill instance owes nobody a TPOT, so its iterations last at most
`iteration_cap_s`. A colocated one that is busy stays under min(beta * T, iteration_cap_s): the
decodes in the batch feel every second. When it is idle nobody decodes, and beta * T only bounds how
long an arrival waits; the operator states that wait as `iteration_cap_s` (on a CPU the fixed cost
of an iteration would eat most of beta * T). `iteration_cap_s` 0 is the paper's rule, beta * T in
both.

Pure: no clock, no I/O. Hosts: engine.scheduler, bench.sim."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from policy.step_load import (
    Accrual,
    JobLoad,
    RequestLoad,
    SlackGrant,
    SlackParams,
    SlackReason,
    StepLoad,
)
from policy.step_time import attended
from policy.vocabulary import Controller, RequestClass, Role

if TYPE_CHECKING:
    from policy.step_time import StepTimeModel

__all__ = [
    "Accrual",
    "JobLoad",
    "RequestLoad",
    "SlackController",
    "SlackGrant",
    "SlackParams",
    "SlackReason",
    "StepLoad",
]

_TOO_SHORT = (SlackReason.NO_SLACK, SlackReason.BELOW_MINIMUM)
PREDICTIVE_GATE = 0.25
"""Least switch probability of a job under `predictive`."""


# Numeric cores: numbers in, numbers out, so that the simulator may compile the very same functions.


def decode_slack_s(
    margin: float, tpot_s: float, iterations: int, now_s: float, first_token_s: float
) -> float:
    """How long the next iteration may last for a request that decodes (paper, equation 1)."""
    return (1 - margin) * tpot_s * (iterations + 1) - (now_s - first_token_s)


def prefill_slack_s(
    margin: float, ttft_s: float, now_s: float, arrival_s: float, remaining_s: float
) -> float:
    """How long the next iteration may last for a request that still prefills."""
    return (1 - margin) * ttft_s - (now_s - arrival_s) - remaining_s


def cap_s(beta: float, tpot_s: float, iteration_cap_s: float, prefill: bool, idle: bool) -> float:
    """Longest iteration that may carry shadow tokens; the module docstring says why."""
    if iteration_cap_s <= 0:
        return beta * tpot_s
    if prefill or idle:
        return iteration_cap_s
    return min(beta * tpot_s, iteration_cap_s)


def credit_after_s(credit_s: float, earned_s: float, spent_s: float, limit_s: float) -> float:
    """An iteration that took longer than predicted leaves a debt, which is earned back first."""
    return min(credit_s + earned_s, limit_s) - spent_s


class SlackController:
    """One instance's controller: the parameters, and the credit that protects routed calls.

    Under async scheduling an iteration is built before the previous one was observed. What that
    one may still spend is held back: the newest (batches_in_flight - 1) grants, observed or not."""

    __slots__ = ("_credit_limit_s", "_credit_s", "_held_back_s", "_starved_since_s", "params")

    def __init__(self, params: SlackParams) -> None:
        self.params = params
        self._credit_s = 0.0
        self._credit_limit_s = self._cap_s(params.slo.tpot_s, idle=False)
        self._held_back_s: deque[float] = deque(maxlen=0)
        self._starved_since_s: float | None = None

    @property
    def credit_s(self) -> float:
        """Negative while in debt."""
        return self._credit_s

    def change(self, params: SlackParams) -> None:
        """From the next grant on. What was earned or is owed stays, up to the new limit."""
        self.params = params
        self._credit_limit_s = self._cap_s(params.slo.tpot_s, idle=False)
        self._credit_s = min(self._credit_s, self._credit_limit_s)

    def grant(self, load: StepLoad, step_time: StepTimeModel) -> SlackGrant:
        """Shadow tokens for this iteration; call it at most once per iteration."""
        assert load.batches_in_flight >= 1, load
        if load.batches_in_flight - 1 != self._held_back_s.maxlen:
            self._held_back_s = deque(self._held_back_s, maxlen=load.batches_in_flight - 1)
        refusal = _refusal(load, self.params)
        if refusal is not SlackReason.GRANTED:
            grant, extra_s = SlackGrant(0, refusal), 0.0
        elif self.params.controller in (Controller.REQUEST, Controller.EAGER):
            grant, extra_s = _unbudgeted(load, self.params), 0.0
        else:
            grant, extra_s = self._budgeted(load, step_time)
            self._age(load, grant, step_time)
        self._held_back_s.append(extra_s)
        return grant

    def observe(
        self, step_s: float, was_decode_only: bool, carried_routed: bool, shadow_extra_s: float
    ) -> None:
        """One finished iteration that carried normal or routed requests; one of shadow work alone
        delayed nobody and is not reported. The flags speak of the batch without shadow tokens,
        `shadow_extra_s` is the time that those added, 0 if there were none.

        An iteration with shadow tokens is not memory-bound any more and earns nothing."""
        params = self.params
        protects = carried_routed or params.controller is not Controller.HARVEST_SLO
        earns = was_decode_only and shadow_extra_s <= 0 and params.role is not Role.PREFILL
        counted = protects or params.accrual is Accrual.ANY
        earned_s = params.delta * step_s if earns and counted else 0.0
        spent_s = max(0.0, shadow_extra_s) if protects else 0.0
        self._credit_s = credit_after_s(self._credit_s, earned_s, spent_s, self._credit_limit_s)

    def _age(self, load: StepLoad, grant: SlackGrant, step_time: StepTimeModel) -> None:
        """An idle instance that refuses for lack of time has nothing to learn from but the time."""
        starved = not load.requests and grant.reason in _TOO_SHORT
        if starved and self._starved_since_s is not None:
            step_time.forget(load.now_s - self._starved_since_s)
        self._starved_since_s = load.now_s if starved else None

    def _cap_s(self, tpot_s: float, *, idle: bool) -> float:
        params = self.params
        prefill = params.role is Role.PREFILL
        return cap_s(params.beta, tpot_s, params.iteration_cap_s, prefill, idle)

    def _budgeted(self, load: StepLoad, step_time: StepTimeModel) -> tuple[SlackGrant, float]:
        base_s = step_time.predicted_s(
            load.planned_requests, load.planned_tokens, load.planned_context_token_product
        )
        budget_s, short = self._budget(load, base_s)
        tokens, predicted_s = _fill(load, self.params, step_time, budget_s)
        reason = _shortage(load, self.params, tokens, short)
        if reason is not SlackReason.GRANTED:
            return SlackGrant(0, reason, budget_s, base_s), 0.0
        extra_s = predicted_s - base_s if self._spends_credit(load) else 0.0
        return SlackGrant(tokens, reason, budget_s, predicted_s), extra_s

    def _budget(self, load: StepLoad, base_s: float) -> tuple[float, SlackReason]:
        """Longest this iteration may last, and what to say when that is too short."""
        slacks_s = _slacks_s(load, self.params) if self._uses_slack() else []
        whole_s = min([self._cap_s(_tpot_s(load, self.params), idle=not load.requests), *slacks_s])
        budget_s = whole_s / load.batches_in_flight
        if not self._spends_credit(load):
            return budget_s, SlackReason.NO_SLACK
        protected_s = base_s + max(0.0, self._credit_s - sum(self._held_back_s))
        if protected_s < budget_s:
            return protected_s, SlackReason.NO_CREDIT
        return budget_s, SlackReason.NO_SLACK

    def _uses_slack(self) -> bool:
        return self.params.controller is Controller.HARVEST_SLO

    def _spends_credit(self, load: StepLoad) -> bool:
        """`harvest` pays for every busy iteration, `harvest-slo` for the protected ones."""
        return bool(load.requests) and (not self._uses_slack() or _carries_routed(load))


def _carries_routed(load: StepLoad) -> bool:
    return any(request.request_class is RequestClass.ROUTED for request in load.requests)


def _refusal(load: StepLoad, params: SlackParams) -> SlackReason:
    """Why this iteration must not carry shadow tokens, whatever its budget; GRANTED if it may."""
    controller = params.controller
    if controller is Controller.OFF:
        return SlackReason.OFF
    if load.first_job_missing_tokens <= 0:
        return SlackReason.NO_JOB
    if controller is Controller.EAGER or (
        controller is Controller.REQUEST and load.first_job_started
    ):
        return SlackReason.GRANTED
    if load.waiting_requests > 0:
        return SlackReason.FOREGROUND_WAITING
    if load.admission_blocked:
        return SlackReason.ADMISSION_BLOCKED
    if controller is Controller.PREDICTIVE and load.first_job_probability < PREDICTIVE_GATE:
        return SlackReason.UNLIKELY
    if (
        params.role is Role.PREFILL
        and controller is not Controller.REQUEST
        and _carries_routed(load)
    ):
        return SlackReason.ROUTED_IN_BATCH
    return SlackReason.GRANTED


def _tpot_s(load: StepLoad, params: SlackParams) -> float:
    default = params.slo.tpot_s
    return min((default if r.tpot_s is None else r.tpot_s for r in load.requests), default=default)


def _slacks_s(load: StepLoad, params: SlackParams) -> list[float]:
    """Of the normal requests: a routed one has no slack to lend, it is protected by the credit."""
    return [
        _slack_s(request, load.now_s, params)
        for request in load.requests
        if request.request_class is not RequestClass.ROUTED
    ]


def _slack_s(request: RequestLoad, now_s: float, params: SlackParams) -> float:
    if request.is_prefill:
        ttft_s = params.slo.ttft_s if request.ttft_s is None else request.ttft_s
        return prefill_slack_s(
            params.margin, ttft_s, now_s, request.arrival_s, request.remaining_prefill_s
        )
    tpot_s = params.slo.tpot_s if request.tpot_s is None else request.tpot_s
    iterations = request.iterations_since_first_token
    return decode_slack_s(params.margin, tpot_s, iterations, now_s, request.first_token_s)


def _jobs(load: StepLoad, params: SlackParams) -> list[JobLoad]:
    first = JobLoad(
        missing_tokens=load.first_job_missing_tokens,
        context_tokens=load.first_job_context_tokens,
        probability=load.first_job_probability,
    )
    gate = PREDICTIVE_GATE if params.controller is Controller.PREDICTIVE else 0.0
    return [job for job in (first, *load.later_jobs) if job.probability >= gate]


def _fill(
    load: StepLoad, params: SlackParams, step_time: StepTimeModel, budget_s: float
) -> tuple[int, float]:
    """Tokens of the jobs, in their order, that fit, and the predicted time with them."""
    requests, tokens = load.planned_requests, load.planned_tokens
    product = load.planned_context_token_product
    rest = min(params.max_chunk_tokens, load.free_shadow_tokens)
    granted = 0
    for job in _jobs(load, params):
        limit = min(job.missing_tokens, rest - granted)
        chunk = step_time.max_tokens_within(
            budget_s, requests, tokens, product, job.context_tokens, limit
        )
        if chunk > 0:
            requests, tokens, granted = requests + 1, tokens + chunk, granted + chunk
            product += attended(chunk, job.context_tokens)
        if chunk < job.missing_tokens:
            break
    return granted, step_time.predicted_s(requests, tokens, product)


def _shortage(load: StepLoad, params: SlackParams, tokens: int, short: SlackReason) -> SlackReason:
    minimum = min(params.n_min_tokens, load.first_job_missing_tokens)
    if tokens >= minimum:
        return SlackReason.GRANTED
    if load.free_shadow_tokens < minimum:
        return SlackReason.NO_SHADOW_KV
    return short if tokens == 0 else SlackReason.BELOW_MINIMUM


def _unbudgeted(load: StepLoad, params: SlackParams) -> SlackGrant:
    """`request`: the paper's GPU prototype, one whole request in flight; `eager`: shadow work as
    normal traffic. Both look at no budget: that is what they are the baseline for."""
    rest = min(params.max_chunk_tokens, max(0, load.free_shadow_tokens))
    jobs = _jobs(load, params)[: 1 if params.controller is Controller.REQUEST else None]
    tokens = min(rest, sum(job.missing_tokens for job in jobs))
    reason = SlackReason.GRANTED if tokens > 0 else SlackReason.NO_SHADOW_KV
    return SlackGrant(tokens, reason)
