"""What the plug-in tells of each step that came back, and of each arrival."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from colocated.scheduler import ColocatedScheduler
from policy.slack import SlackReason
from tests.engine.scheduler_world import World, normal, params, scheduler_of, shadow

if TYPE_CHECKING:
    from engine.marks import Marks
    from engine.timing import FinishedStep

pytestmark = pytest.mark.vllm_cpu


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_each_step_is_told_with_its_grant_and_its_time(asynchronous: bool) -> None:
    told: list[FinishedStep] = []
    waits_s: list[float] = []

    class Told(ColocatedScheduler):
        def _finished(self, finished: FinishedStep) -> None:
            told.append(finished)

        def _arrived(self, wait_s: float, marks: Marks) -> None:
            waits_s.append(wait_s)

    world = World(
        scheduler_of(Told, params(), asynchronous=asynchronous), depth=2 if asynchronous else 1
    )
    world.add(normal("n", 32, max_tokens=3), shadow("s", 100))
    world.run()
    first, second = told[0], told[1]
    assert (first.step.waiting_requests, first.step.grant.reason) == (
        1,
        SlackReason.FOREGROUND_WAITING,
    )
    assert (first.step.foreground.tokens, first.step.shadow.tokens) == (32, 0)
    assert (second.step.grant.tokens, second.step.shadow.tokens) == (64, 64)
    assert second.step.whole.tokens == second.step.foreground.tokens + 64
    assert second.step_s == pytest.approx(world.step_s)
    assert len(waits_s) == 1
    assert 0 <= waits_s[0] < 60
