"""The speed benchmark's row says what was run, not how fast: times are the machine's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from bench import sim_speed

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("is_split", [False, True])
def test_a_row_has_shadow_work_in_it(is_split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim_speed, "SESSIONS_PER_S", 0.2)
    row = sim_speed.measure(sim_speed.Cell(instances=8, rho=0.1, is_split=is_split), 5.0)
    assert row.simulated_s >= 5.0
    assert row.events > 100
    assert row.shadow_tokens > 0


def test_the_result_has_what_is_asked_for(tmp_path: Path) -> None:
    sim_speed.main(["--smoke", "--save-result", "--result-dir", str(tmp_path)])
    result = json.loads((tmp_path / "sim_speed.json").read_text())
    (row,) = result["rows"]
    assert {"sim_s_per_wall_s", "events_per_s", "instances", "rho"} <= set(row)
