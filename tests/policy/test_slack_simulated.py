"""One instance under seeded load: what must hold over a whole history, with a latency model that is
exact and with one that is wrong."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

import pytest

from policy.slack import (
    AUTO,
    JobLoad,
    SlackController,
    SlackGrant,
    SlackParams,
    StepLoad,
    decode_due_s,
    prefill_slack_s,
)
from policy.step_time import NO_BATCH, Batch, StepTimeCoefficients, StepTimeModel
from policy.vocabulary import Controller, Role, Slo

COEFFICIENTS = StepTimeCoefficients(
    fixed_s=0.005,
    s_per_request=0.0005,
    s_per_token=0.0001,
    s_per_token_context=1e-9,
    s_per_context_token=5e-8,
)
PARAMS = SlackParams(
    controller=Controller.HARVEST_SLO,
    beta=0.5,
    delta=0.05,
    margin=0.1,
    n_min_tokens=16,
    iteration_cap_s=0.05,
    max_chunk_tokens=512,
    slo=Slo(ttft_s=1.0, tpot_s=0.08),
    role=Role.COLOCATED,
)
BUDGET_TOKENS = 1024
SLOTS = 8


@dataclass(slots=True)
class Call:
    """One request: a prompt, then so many tokens."""

    routed: bool
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    computed_tokens: int = 0
    first_token_s: float = inf
    emitted: int = 0

    @property
    def next_tokens(self) -> int:
        return max(1, self.prompt_tokens - self.computed_tokens)


class Step(NamedTuple):
    """What was built, and what it takes if the machine is `slowness` times as slow."""

    foreground: Batch
    whole: Batch
    grant: SlackGrant
    routed: bool
    decode_only: bool
    calls: list[tuple[Call, int]]


class Seen(NamedTuple):
    """One step that came back."""

    step: Step
    step_s: float
    base_s: float
    """Of the same step without shadow tokens, on the machine as it is."""


@dataclass
class Instance:
    """As vLLM's loop, with `depth` batches in flight; the machine takes what `truth` says."""

    params: SlackParams
    truth: StepTimeModel
    model: StepTimeModel
    depth: int
    chance: random.Random
    now_s: float = 0.0
    running: list[Call] = field(default_factory=list)
    waiting: deque[Call] = field(default_factory=deque)
    in_flight: deque[Step] = field(default_factory=deque)
    seen: list[Seen] = field(default_factory=list)
    grants: list[tuple[StepLoad, SlackGrant]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.controller = SlackController(self.params)
        self.job_tokens = 20_000

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._arrivals()
            step = self._built()
            if step.whole.requests:
                self.in_flight.append(step)
            if len(self.in_flight) >= self.depth or (self.in_flight and not step.whole.requests):
                self._bring_back(self.in_flight.popleft())
            elif not self.in_flight:
                self.now_s += 0.01
        while self.in_flight:
            self._bring_back(self.in_flight.popleft())

    def _arrivals(self) -> None:
        if self.chance.random() < 0.06:
            self.waiting.append(
                Call(
                    routed=self.chance.random() < 0.5,
                    arrival_s=self.now_s,
                    prompt_tokens=self.chance.randrange(16, 3000),
                    output_tokens=self.chance.randrange(2, 60),
                )
            )

    def _built(self) -> Step:
        load = self._load()
        grant = self.controller.grant(load, self.model)
        self.grants.append((load, grant))
        while self.waiting and len(self.running) < SLOTS:
            self.running.append(self.waiting.popleft())
        foreground, calls, decode_only = NO_BATCH, [], True
        for call in self.running:
            tokens = min(call.next_tokens, BUDGET_TOKENS - foreground.tokens)
            if tokens > 0:
                foreground = foreground.plus(tokens, call.computed_tokens)
                decode_only &= call.first_token_s < inf
                calls.append((call, tokens))
                call.computed_tokens += tokens
        whole = foreground
        if grant.tokens:
            whole = foreground.plus(grant.tokens, load.jobs[0].context_tokens)
            self.job_tokens -= grant.tokens
            if self.job_tokens <= 0:
                self.job_tokens = 20_000
        routed = any(call.routed for call, _ in calls)
        return Step(foreground, whole, grant, routed, decode_only, calls)

    def _load(self) -> StepLoad:
        calls = [] if self.waiting else self.running
        planned = NO_BATCH
        for call in calls:
            tokens = min(call.next_tokens, BUDGET_TOKENS - planned.tokens)
            if tokens > 0:
                planned = planned.plus(tokens, call.computed_tokens)
        done = 20_000 - self.job_tokens
        return StepLoad(
            now_s=self.now_s,
            waiting_requests=len(self.waiting),
            admission_blocked=False,
            busy=bool(calls),
            carries_routed=any(call.routed for call in calls),
            min_tpot_s=self.params.slo.tpot_s,
            min_slack_s=min((self._slack_s(c) for c in calls if not c.routed), default=inf),
            planned=planned,
            free_shadow_tokens=BUDGET_TOKENS - planned.tokens,
            jobs=(JobLoad(missing_tokens=self.job_tokens, context_tokens=done, probability=1.0),),
            in_flight_s=sum(self.model.predicted_s(step.whole) for step in self.in_flight),
            in_flight_charge_s=sum(step.grant.charge_s for step in self.in_flight),
        )

    def _slack_s(self, call: Call) -> float:
        margin, slo = self.params.margin, self.params.slo
        if call.first_token_s < inf:
            due_s = decode_due_s(margin, slo.tpot_s, call.emitted - 1, call.first_token_s)
            return due_s - self.now_s
        rest = max(0, call.prompt_tokens - call.computed_tokens - BUDGET_TOKENS)
        rest_s = self.model.prefill_s(rest, call.computed_tokens, BUDGET_TOKENS)
        return prefill_slack_s(margin, slo.ttft_s, self.now_s, call.arrival_s, rest_s)

    def _bring_back(self, step: Step) -> None:
        step_s = self.truth.predicted_s(step.whole)
        base_s = self.truth.predicted_s(step.foreground)
        self.now_s += step_s
        predicted_extra_s = 0.0
        if step.whole.requests > step.foreground.requests:
            predicted_extra_s = max(0.0, step_s - self.model.predicted_s(step.foreground))
        self.model.observe(step_s, step.whole)
        if step.foreground.requests:
            self.controller.observe(step_s, step.decode_only, step.routed, predicted_extra_s)
        self.seen.append(Seen(step, step_s, base_s))
        for call, _ in step.calls:
            if call.computed_tokens >= call.prompt_tokens:
                call.first_token_s = min(call.first_token_s, self.now_s)
                call.emitted += 1
        self.running = [call for call in self.running if call.emitted < call.output_tokens]

    def worst_window_s(self) -> float:
        """Over all windows: extra time on routed iterations, less delta x the time that earns."""
        worst_s = balance_s = 0.0
        for seen in self.seen:
            step = seen.step
            if not step.routed:
                continue
            extra_s = seen.step_s - seen.base_s
            if step.decode_only and extra_s == 0:
                extra_s = -self.params.delta * seen.step_s
            balance_s = max(0.0, balance_s + extra_s)
            worst_s = max(worst_s, balance_s)
        return worst_s


def exact() -> StepTimeModel:
    return StepTimeModel(COEFFICIENTS)


def slower(factor: float) -> StepTimeModel:
    model = exact()
    model.base_factor = model.context_factor = model.read_factor = factor
    return model


def an_instance(
    seed: int, depth: int = 1, truth: StepTimeModel | None = None, learns: bool = False
) -> Instance:
    model = StepTimeModel(COEFFICIENTS, trusted_tokens=16) if learns else Unteachable(COEFFICIENTS)
    return Instance(PARAMS, truth or exact(), model, depth, random.Random(seed))


class Unteachable(StepTimeModel):
    __slots__ = ()

    def observe(self, step_s: float, batch: Batch) -> None:
        pass


ONE_CAP_S = PARAMS.beta * PARAMS.slo.tpot_s
EXACTLY = 1e-9


@pytest.mark.parametrize("tpot_s", [0.08, 0.8], ids=["tight", "several_iterations_in_a_cap"])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_routed_calls_lose_what_was_earned_and_one_cap_over_any_window(
    seed: int, depth: int, tpot_s: float
) -> None:
    params = replace(PARAMS, slo=Slo(ttft_s=1.0, tpot_s=tpot_s), iteration_cap_s=1.0, delta=0.5)
    instance = Instance(params, exact(), Unteachable(COEFFICIENTS), depth, random.Random(seed))
    instance.run(2000)
    assert instance.worst_window_s() <= params.beta * tpot_s + EXACTLY
    routed = [seen for seen in instance.seen if seen.step.routed]
    assert sum(seen.step.grant.tokens > 0 for seen in routed) > 5, "protection was never spent"


@pytest.mark.parametrize("depth", [1, 2], ids=["sync", "async"])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_in_flight_is_never_longer_than_one_cap_and_nothing_waits_beside_it(
    seed: int, depth: int
) -> None:
    instance = an_instance(seed, depth)
    instance.run(2000)
    granted = [(load, grant) for load, grant in instance.grants if grant.tokens]
    assert len(granted) > 100
    for load, grant in granted:
        assert load.waiting_requests == 0
        cap_s = instance.controller.cap_s(load.min_tpot_s, busy=load.busy)
        assert grant.predicted_s + load.in_flight_s <= cap_s + EXACTLY
    longest_s = max(seen.step_s for seen in instance.seen if seen.step.grant.tokens)
    assert longest_s <= max(ONE_CAP_S, PARAMS.iteration_cap_s) + EXACTLY


@pytest.mark.parametrize("depth", [1, 2], ids=["sync", "async"])
@pytest.mark.parametrize("factor", [1.5, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_on_a_slower_machine_the_overdraft_is_bounded_and_the_budget_shrinks(
    seed: int, factor: float, depth: int
) -> None:
    instance = an_instance(seed, depth, truth=slower(factor), learns=True)
    instance.run(2000)
    # Trust doubles from 16 tokens on, so no iteration is far beyond what was seen; what an
    # overlong one took is paid back before the next, and each is at most `factor` caps.
    assert instance.worst_window_s() <= (depth + 1) * factor * ONE_CAP_S
    assert instance.model.base_factor == pytest.approx(factor, rel=0.1)
    late = instance.seen[len(instance.seen) // 2 :]
    longest_cap_s = max(ONE_CAP_S, PARAMS.iteration_cap_s)
    for seen in late:
        assert not seen.step.grant.tokens or seen.step_s <= 1.2 * longest_cap_s


def test_the_budget_recovers_slowly_when_the_machine_is_fast_again() -> None:
    instance = an_instance(1, truth=slower(3.0), learns=True)
    instance.run(300)
    instance.truth, factors = exact(), [instance.model.base_factor]
    for _ in range(30):
        instance.run(10)
        factors.append(instance.model.base_factor)
    assert factors[0] > 2.5
    assert factors == sorted(factors, reverse=True), "it never grows while the machine is faster"
    assert factors[1] > 0.6 * factors[0], "ten fast iterations undo little"
    assert factors[-1] == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("n_min_tokens", [16, AUTO])
def test_an_idle_instance_is_bounded_by_its_cap_and_not_by_the_largest_busy_chunk(
    n_min_tokens: int,
) -> None:
    params = replace(PARAMS, n_min_tokens=n_min_tokens, iteration_cap_s=0.09, max_chunk_tokens=64)
    model = StepTimeModel(COEFFICIENTS, trusted_tokens=16)
    instance = Instance(params, exact(), model, 1, random.Random(0))
    instance.chance.random = lambda: 1.0  # type: ignore[method-assign]  # nobody ever arrives
    instance.run(30)
    chunks = [seen.step.grant.tokens for seen in instance.seen]
    assert chunks[:4] == [16, 32, 64, 128], "trust grows with what was seen"
    assert max(chunks) > 800
    assert max(seen.step_s for seen in instance.seen) <= 0.09 + EXACTLY
