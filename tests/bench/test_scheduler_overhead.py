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
    assert {(row["chunk"], row["asynchronous"]) for row in rows} == {
        (chunk, asynchronous)
        for chunk in ("none", "granted", "tight", "refused", "arrivals")
        for asynchronous in (False, True)
    }
    for row in rows:
        assert 0 < row["plain_us_p50"] <= row["plain_us_p99"]
        assert 0 < row["plugin_us_p50"] <= row["plugin_us_p99"]
        if row["chunk"] in ("granted", "tight"):
            assert row["shadow_tokens"] >= 16 * (row["steps"] - 1)
        elif row["chunk"] != "arrivals":
            assert row["shadow_tokens"] == 0
