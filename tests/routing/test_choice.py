"""Small or large now, and the chance of the small model at the next call."""

from __future__ import annotations

import pytest

from routing.choice import choose_step
from routing.router_file import Drift

STICKY = Drift(0.0, 1.0, 1.0)
FORGETFUL = Drift(0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("logit", "least", "drift", "uses_small", "next_small"),
    [
        (0.0, 0.5, STICKY, True, 0.5),
        (2.0, 0.5, STICKY, True, 0.977),
        (-2.0, 0.5, STICKY, False, 0.023),
        (-2.0, 0.5, FORGETFUL, False, 0.5),
        (1.0, 0.9, STICKY, False, 0.115),
        (-9.0, 0.0, STICKY, True, 1.0),
        (9.0, 1.0, STICKY, False, 0.0),
    ],
    ids=["even", "easy", "hard", "no_memory", "strict", "always_small", "always_large"],
)
def test_choice(
    logit: float, least: float, drift: Drift, uses_small: bool, next_small: float
) -> None:
    choice = choose_step(logit, least, drift)
    assert choice.uses_small is uses_small
    assert choice.next_small_probability == pytest.approx(next_small, abs=1e-3)
