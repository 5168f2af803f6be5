"""Parameters that change at any moment of a random load cost normal and routed traffic nothing."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from engine.control import APPLIED, control_xargs
from tests.engine import test_scheduler_invariants as invariants
from tests.engine.scheduler_world import a_request
from tests.engine.traffic import Script

if TYPE_CHECKING:
    from tests.engine.played import Played

pytestmark = pytest.mark.vllm_cpu

CHANGE_SHARE = 0.15
"""Of the iterations."""
CHOICES: dict[str, list[Any]] = {
    "controller": ["off", "harvest", "harvest-slo", "harvest-slo", "predictive"],
    "kv_cap_share": [0.01, 0.25, 1.0],
    "idle_age_s": [0.0, 0.1, 2.0],
    "n_min_tokens": ["auto", 1, 48],
    "max_chunk_tokens": [48, 256, 2048],
    "iteration_cap_s": [0.01, 0.1, 5.0],
    "margin": [0.0, 0.3],
    "beta": [0.1, 1.0],
    "delta": [0.0, 1.0],
}


class Changes:
    """In the place of the watch, whose limits hold for parameters that stay."""

    def __init__(self, *_limits: object) -> None:
        self._chance = random.Random(0)
        self._made = 0

    def attach(self, run: Played) -> None:
        run.before.append(self._change)

    def _change(self, run: Played) -> None:
        run.scheduler.kv_cache_manager.block_pool.free_block_queue.check()
        if self._chance.random() > CHANGE_SHARE:
            return
        changed = [name for name in CHOICES if self._chance.random() < 0.3]
        changes = {name: self._chance.choice(CHOICES[name]) for name in changed}
        xargs = control_xargs("test", changes)
        self._made += 1
        request = a_request(f"control-{self._made}", [1], **xargs)
        run.scheduler.add_request(request)
        assert request.stop_reason == APPLIED


@pytest.mark.parametrize("seed", range(6))
def test_parameters_may_change_at_any_moment(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invariants, "KvWatch", Changes)
    setting = invariants.Setting.drawn(seed)
    script = Script(seed, invariants.Setting.mix(seed, shared=False))
    run = invariants.with_shadows(script, setting)
    invariants.assert_all_ended_well(run, script)
    invariants.assert_same_foreground(run, invariants.twin(script, setting))
