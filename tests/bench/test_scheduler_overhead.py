from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.scheduler_overhead import main

MODEL = Path(__file__).parents[2] / ".models" / "tiny-a"


@pytest.mark.vllm_cpu
def test_it_measures_the_same_steps_with_and_without_the_plug_in(tmp_path: Path) -> None:
    main(["--smoke", "--model", str(MODEL), "--save-result", "--result-dir", str(tmp_path)])
    rows = json.loads((tmp_path / "scheduler_overhead.json").read_text())["rows"]
    assert {row["variant"] for row in rows} == {"vllm", "ours", "ours+shadow"}
    for row in rows:
        assert row["schedule_ms_p50"] > 0
        assert (row["shadow_tokens"] > 0) == (row["variant"] == "ours+shadow")
