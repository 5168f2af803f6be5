"""How many shadow tokens one engine iteration carries: Algorithm 1 of the paper, its controllers.

`SlackController.grant` decides for the iteration that is being built, `observe` reports how a
finished one went. The budget of an iteration is in seconds; `policy.step_time` makes it tokens.

Which cap holds (`cap_s`): a prefill instance owes nobody a TPOT, so its iterations last at most
`iteration_cap_s`. A colocated one that is busy stays under min(beta * T, iteration_cap_s): the
decodes in the batch feel every second. When it is idle nobody decodes, and beta * T only bounds how
long an arrival waits; the operator states that wait as `iteration_cap_s` (on a CPU the fixed cost
of an iteration would eat most of beta * T). `iteration_cap_s` 0 is the paper's rule, beta * T in
both. Under async scheduling an arrival waits for the iterations in flight as well: the cap holds
for their predicted time together.

Pure: no clock, no I/O. Hosts: engine.planning, bench.sim."""

from __future__ import annotations

from typing import TYPE_CHECKING

from policy.step_load import (
    AUTO,
    MIN_AUTO_TOKENS,
    Accrual,
    JobLoad,
    SlackGrant,
    SlackParams,
    SlackReason,
    StepLoad,
)
from policy.step_refusal import (
    PREDICTIVE_GATE,
    likely_jobs,
    refusal_of,
    refusal_of_any_job,
    unbudgeted,
)
from policy.vocabulary import Controller, Role

if TYPE_CHECKING:
    from policy.step_time import StepTimeModel

__all__ = [
    "AUTO",
    "MIN_AUTO_TOKENS",
    "PREDICTIVE_GATE",
    "Accrual",
    "JobLoad",
    "SlackController",
    "SlackGrant",
    "SlackParams",
    "SlackReason",
    "StepLoad",
]

_BUDGETED = (Controller.HARVEST, Controller.HARVEST_SLO, Controller.PREDICTIVE)
_TOO_SHORT = (SlackReason.NO_SLACK, SlackReason.BELOW_MINIMUM)


# Numeric cores: numbers in, numbers out, so that the simulator may compile the very same functions.


def decode_due_s(margin: float, tpot_s: float, iterations: int, first_token_s: float) -> float:
    """When the next token of a request that decodes is due; the time until then is its slack, how
    long the next iteration may last (paper, equation 1). It never moves back."""
    return first_token_s + (1 - margin) * tpot_s * (iterations + 1)


def prefill_slack_s(
    margin: float, ttft_s: float, now_s: float, arrival_s: float, remaining_s: float
) -> float:
    """How long the next iteration may last for a request that still prefills. `remaining_s` is the
    predicted time of its chunks after this iteration's: that one is in what the slack bounds."""
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
    """One instance's controller: the parameters, and the credit that protects routed calls."""

    __slots__ = ("_credit_limit_s", "_credit_s", "_starved_since_s", "_step_tokens", "params")

    def __init__(self, params: SlackParams, step_tokens: int | None = None) -> None:
        """`step_tokens`: most that the engine puts into one iteration, if that is limited."""
        self.params = params
        self._step_tokens = step_tokens
        self._credit_s = 0.0
        self._credit_limit_s = self.cap_s(params.slo.tpot_s, busy=True)
        self._starved_since_s: float | None = None

    def change(self, params: SlackParams) -> None:
        """From the next grant on. What was earned or is owed stays, up to the new limit; another
        controller earned by other rules, so that only a debt stays."""
        same_rules = params.controller is self.params.controller
        self.params = params
        self._credit_limit_s = self.cap_s(params.slo.tpot_s, busy=True)
        self._credit_s = min(self._credit_s, self._credit_limit_s if same_rules else 0.0)

    @property
    def credit_s(self) -> float:
        """Negative while in debt."""
        return self._credit_s

    @property
    def uses_slack(self) -> bool:
        """Whether `StepLoad.min_slack_s` matters."""
        return self.params.controller is Controller.HARVEST_SLO

    def cap_s(self, min_tpot_s: float, *, busy: bool) -> float:
        """Longest iteration with shadow tokens; T is the default SLO while nobody is in flight."""
        params = self.params
        tpot_s = min_tpot_s if busy else params.slo.tpot_s
        prefill = params.role is Role.PREFILL
        return cap_s(params.beta, tpot_s, params.iteration_cap_s, prefill, not busy)

    def minimum_tokens(self, job: JobLoad, step_time: StepTimeModel, *, busy: bool) -> int:
        """The smallest chunk of this job that is worth its cost; smaller ones are deferred, but
        never in the hope of one that no iteration can carry."""
        n_min, share = self.params.n_min_tokens, self.params.reread_share
        if n_min == AUTO:
            enough = step_time.worthwhile_tokens(job.context_tokens, share, alone=not busy)
            minimum = max(MIN_AUTO_TOKENS, enough)
        else:
            minimum = n_min
        if self._step_tokens is not None:
            minimum = min(minimum, self._step_tokens)
        return min(minimum, job.missing_tokens)

    def refusal(self, load: StepLoad, step_time: StepTimeModel) -> SlackGrant | None:
        """What `grant` would refuse of a busy iteration whatever the jobs and their room: a host
        may ask this first, before it looks at either. None: ask `grant`."""
        if self.params.controller not in _BUDGETED:
            return None
        reason = refusal_of_any_job(load, self.params)
        if reason is not SlackReason.GRANTED:
            return SlackGrant(0, reason)
        if not load.busy:
            return None
        base_s = step_time.predicted_s(load.planned)
        budget_s, short = self._budget(load, base_s)
        return None if budget_s > base_s else SlackGrant(0, short, budget_s, base_s)

    def grant(self, load: StepLoad, step_time: StepTimeModel) -> SlackGrant:
        """Shadow tokens for this iteration; call it at most once per iteration."""
        refusal = refusal_of(load, self.params)
        if refusal is not SlackReason.GRANTED:
            return SlackGrant(0, refusal)
        if self.params.controller in (Controller.REQUEST, Controller.EAGER):
            return unbudgeted(load, self.params)
        grant = self._budgeted(load, step_time)
        self._age(load, grant, step_time)
        return grant

    def observe(
        self, step_s: float, was_decode_only: bool, carried_routed: bool, shadow_extra_s: float
    ) -> None:
        """One finished iteration that carried normal or routed requests; one of shadow work alone
        delayed nobody and is not reported. The flags speak of the batch without shadow tokens,
        `shadow_extra_s` is the time that those added, 0 if there were none.

        An iteration with shadow tokens is not memory-bound any more and earns nothing."""
        self._starved_since_s = None  # what ran has been learned from: nothing is to be forgotten
        params = self.params
        protects = carried_routed or params.controller is not Controller.HARVEST_SLO
        earns = was_decode_only and shadow_extra_s <= 0 and params.role is not Role.PREFILL
        counted = protects or params.accrual is Accrual.ANY
        earned_s = params.delta * step_s if earns and counted else 0.0
        spent_s = max(0.0, shadow_extra_s) if protects else 0.0
        self._credit_s = credit_after_s(self._credit_s, earned_s, spent_s, self._credit_limit_s)

    def _age(self, load: StepLoad, grant: SlackGrant, step_time: StepTimeModel) -> None:
        """An idle instance that refuses for lack of time has nothing to learn from but the time."""
        starved = not load.busy and load.in_flight_s <= 0 and grant.reason in _TOO_SHORT
        if starved and self._starved_since_s is not None:
            step_time.forget(load.now_s - self._starved_since_s)
        self._starved_since_s = load.now_s if starved else None

    def _budgeted(self, load: StepLoad, step_time: StepTimeModel) -> SlackGrant:
        base_s = step_time.predicted_s(load.planned)
        budget_s, short = self._budget(load, base_s)
        tokens, predicted_s = self._fill(load, step_time, budget_s)
        reason = self._shortage(load, step_time, tokens, base_s, short)
        if reason is not SlackReason.GRANTED:
            return SlackGrant(0, reason, budget_s, base_s)
        charge_s = predicted_s - base_s if self._spends_credit(load) else 0.0
        return SlackGrant(tokens, reason, budget_s, predicted_s, charge_s)

    def _budget(self, load: StepLoad, base_s: float) -> tuple[float, SlackReason]:
        """Longest this iteration may last, and what to say when that is too short."""
        whole_s = self.cap_s(load.min_tpot_s, busy=load.busy)
        if self.uses_slack:
            whole_s = min(whole_s, load.min_slack_s)
        budget_s = whole_s - load.in_flight_s
        if self._spends_credit(load):
            protected_s = base_s + max(0.0, self._credit_s - load.in_flight_charge_s)
            if protected_s < budget_s:
                return protected_s, SlackReason.NO_CREDIT
        return budget_s, SlackReason.NO_SLACK

    def _spends_credit(self, load: StepLoad) -> bool:
        """`harvest` pays for every busy iteration, `harvest-slo` for the protected ones."""
        return load.carries_routed or (load.busy and not self.uses_slack)

    def _fill(self, load: StepLoad, step_time: StepTimeModel, budget_s: float) -> tuple[int, float]:
        """Tokens of the jobs, in their order, that fit, and the predicted time with them."""
        batch = load.planned
        rest = self._most_tokens(load, step_time)
        for job in likely_jobs(load, self.params):
            limit = min(job.missing_tokens, rest)
            chunk = step_time.max_tokens_within(budget_s, batch, job.context_tokens, limit)
            if chunk > 0:
                batch, rest = batch.plus(chunk, job.context_tokens), rest - chunk
            if chunk < job.missing_tokens:
                break
        return batch.tokens - load.planned.tokens, step_time.predicted_s(batch)

    def _most_tokens(self, load: StepLoad, step_time: StepTimeModel) -> int:
        most = load.free_shadow_tokens
        if step_time.trusted_tokens is not None:
            most = min(most, step_time.trusted_tokens)
        return min(most, self.params.max_chunk_tokens) if load.busy else most

    def _shortage(
        self,
        load: StepLoad,
        step_time: StepTimeModel,
        tokens: int,
        base_s: float,
        short: SlackReason,
    ) -> SlackReason:
        minimum = self.minimum_tokens(load.jobs[0], step_time, busy=load.busy)
        if tokens >= minimum:
            return SlackReason.GRANTED
        if load.free_shadow_tokens < minimum:
            return SlackReason.NO_SHADOW_KV
        if tokens == 0:
            return short
        if self._hopes(load.busy) or tokens < self._best_tokens(load, step_time, base_s):
            return SlackReason.BELOW_MINIMUM
        return SlackReason.GRANTED

    def _hopes(self, busy: bool) -> bool:
        """Whether a chunk below the minimum waits even if none in a batch like this can be larger.

        A constant minimum waits for another batch, as in the paper. On an idle instance whose cap
        the operator states there is none to wait for: a slow one would never compute what lies
        behind a long context."""
        constant = self.params.n_min_tokens != AUTO
        return constant and (busy or self.params.iteration_cap_s <= 0)

    def _best_tokens(self, load: StepLoad, step_time: StepTimeModel, base_s: float) -> int:
        """The chunk of an iteration like this one that only the cap bounds. What is in flight
        before that one is as long as its own foreground work."""
        cap = self.cap_s(load.min_tpot_s, busy=load.busy) - min(load.in_flight_s, base_s)
        job = load.jobs[0]
        limit = min(job.missing_tokens, self._most_tokens(load, step_time))
        return step_time.max_tokens_within(cap, load.planned, job.context_tokens, limit)
