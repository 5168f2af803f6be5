"""The running minima and sums equal what a look at every request would find."""

from __future__ import annotations

import random
from math import inf
from typing import Any

import pytest

from colocated.scheduler import ColocatedScheduler
from engine.marks import Marks
from policy.slack import StepLoad, decode_due_s, prefill_slack_s
from policy.step_time import NO_BATCH
from policy.vocabulary import RequestClass
from tests.engine.scheduler_world import World, a_request, params, prompt, scheduler_of, shadow

pytestmark = pytest.mark.vllm_cpu

MARGIN = 0.1
TPOT_S, TTFT_S = 0.05, 0.6


class Watched(ColocatedScheduler):
    """Compares each load and each step with the plain sums over its requests."""

    def _prepare(self) -> None:
        super()._prepare()
        self.first_token_s: dict[str, float] = {}
        self.emitted: dict[str, int] = {}
        self.arrived_s: dict[str, float] = {}
        self.marks: dict[str, Marks] = {}
        self.loads: list[StepLoad] = []
        self.hopeless = 0

    def _foreground_arrived(self, request: Any, marks: Marks) -> None:
        request.arrival_time += 1e9  # a wall clock that is not believed: no transit
        super()._foreground_arrived(request, marks)
        self.marks[request.request_id] = marks
        self.arrived_s[request.request_id] = self.clock()

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        now_s = self.clock()
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for client in outputs.values():
            for output in client.outputs:
                if output.new_token_ids and output.request_id in self.marks:
                    self.first_token_s.setdefault(output.request_id, now_s)
                    self.emitted[output.request_id] = self.emitted.get(output.request_id, 0) + 1
        return outputs

    def schedule(self, throttle_prefills: bool = False) -> Any:
        output = super().schedule(throttle_prefills)
        step = self.engine_clock._built[-1]
        expected = {"foreground": NO_BATCH, "shadow": NO_BATCH}
        decode_only, routed = True, False
        for name, tokens in output.num_scheduled_tokens.items():
            context = self.requests[name].num_computed_tokens - tokens
            kind = "shadow" if name in self.shadows else "foreground"
            expected[kind] = expected[kind].plus(tokens, context)
            if kind == "foreground":
                decode_only &= tokens == 1 and name in self.first_token_s
                routed |= self.marks[name].request_class is RequestClass.ROUTED
        assert step.foreground == expected["foreground"]
        assert step.shadow == expected["shadow"]
        assert step.whole == expected["foreground"].joined(expected["shadow"])
        assert (step.decode_only, step.carries_routed) == (decode_only, routed)
        return output

    def _step_load(self, now_s: float, waiting: int) -> StepLoad:
        load = super()._step_load(now_s, waiting)
        if not waiting:
            self.loads.append(load)
            self._check(load, now_s)
        return load

    def _check(self, load: StepLoad, now_s: float) -> None:
        planned, slacks_s, tpots_s, routed = NO_BATCH, [inf], [inf], False
        for request in self.running:
            context, name = request.num_computed_tokens, request.request_id
            missing = request.num_tokens_with_spec + request.num_output_placeholders - context
            tokens = min(missing, self.max_num_scheduled_tokens - planned.tokens)
            if tokens > 0:
                planned, context = planned.plus(tokens, context), context + tokens
            marks = self.marks[name]
            tpots_s.append(marks.tpot_s or TPOT_S)
            if marks.request_class is RequestClass.ROUTED:
                routed = True
            else:
                slacks_s.append(self._slack_s(request, context, now_s))
        assert load.planned == planned
        assert (load.busy, load.carries_routed) == (bool(self.running), routed)
        assert load.min_tpot_s == min(tpots_s)
        enough_s = self.slack.cap_s(min(tpots_s), busy=True) + load.in_flight_s
        hopeless_s = self.step_time.predicted_s(planned) + load.in_flight_s
        if load.min_slack_s <= hopeless_s:  # no chunk fits: by how much does not matter
            assert min(*slacks_s, enough_s) <= hopeless_s + 1e-9
            self.hopeless += 1
            return
        assert load.min_slack_s <= min(slacks_s) + 1e-9
        assert min(load.min_slack_s, enough_s) == pytest.approx(min(*slacks_s, enough_s))

    def _slack_s(self, request: Any, context: int, now_s: float) -> float:
        name = request.request_id
        marks = self.marks[name]
        if name in self.first_token_s:
            tpot_s, iterations = marks.tpot_s or TPOT_S, self.emitted[name] - 1
            return decode_due_s(MARGIN, tpot_s, iterations, self.first_token_s[name]) - now_s
        rest = request.num_tokens - context
        remaining_s = self.step_time.prefill_s(rest, context, self.max_num_scheduled_tokens)
        ttft_s = marks.ttft_budget_s or TTFT_S
        return prefill_slack_s(MARGIN, ttft_s, now_s, self.arrived_s[name], remaining_s)


def traffic(world: World, seed: int, steps: int) -> None:
    chance = random.Random(seed)
    for step in range(steps):
        if chance.random() < 0.1:
            marks = Marks(
                request_class=chance.choice([RequestClass.NORMAL, RequestClass.ROUTED]),
                tpot_s=chance.choice([None, None, 0.02, 0.1]),
                ttft_budget_s=chance.choice([None, None, 0.2, 5.0]),
            )
            tokens, output_tokens = chance.randrange(2, 1500), chance.randrange(1, 80)
            ids = prompt(tokens, seed=10 + step)
            world.add(a_request(f"n{step}", ids, marks, max_tokens=output_tokens))
        if chance.random() < 0.1:
            world.add(shadow(f"x{step}", chance.randrange(100, 1500), session=f"s{step % 7}"))
        world.step_s = chance.choice([0.005, 0.02, 0.06])
        world.step()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("blocks", [200, 2000], ids=["tight", "roomy"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_loads_and_steps_equal_the_plain_sums(asynchronous: bool, blocks: int, seed: int) -> None:
    scheduler = scheduler_of(
        Watched,
        params(margin=MARGIN, slo_tpot_s=TPOT_S, slo_ttft_s=TTFT_S, beta=0.8),
        asynchronous=asynchronous,
        blocks=blocks,
        max_num_seqs=12,
    )
    world = World(scheduler, depth=2 if asynchronous else 1)
    traffic(world, seed, 500)
    assert sum(load.busy for load in scheduler.loads) > 20
    assert 0 < scheduler.hopeless < len(scheduler.loads)
    assert sum(load.min_slack_s < load.min_tpot_s for load in scheduler.loads) > 3
    assert scheduler.shadow_stats.tokens > 0
