"""Requests in each state at each time, and a picture that is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bench.study.approaches import ApproachName
from bench.study.cell import run_approaches
from bench.study.timeline import in_state, write_timeline
from tests.bench.study.builders import LARGE, SMALL, a_config

if TYPE_CHECKING:
    from pathlib import Path


def test_every_request_is_in_one_state_from_arrival_to_end(tmp_path: Path) -> None:
    runs = run_approaches(a_config(), (ApproachName.NO_SHADOW,), (8.0, 8.0))
    outcome = runs[0].outcome
    at_s = np.linspace(0, outcome.end_s, 97)
    everyone = np.ones(len(outcome.model), dtype=bool)
    counts = in_state(outcome, everyone, at_s)
    present = [int(((outcome.arrival_s <= at) & (outcome.finished_s > at)).sum()) for at in at_s]
    assert sum(counts.values()).tolist() == present
    assert max(present) > 0
    picture = tmp_path / "timeline.png"
    write_timeline(outcome, (SMALL, LARGE), 10.0, 35.0, "a run", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
