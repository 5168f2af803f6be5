"""The bandwidth benchmark as CI runs it: real NIXL between two processes, no engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench.bandwidth", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.nixl
def test_every_way_is_a_row_or_says_why_not(tmp_path: Path) -> None:
    small = ["--total-buffer-size", "1048576", "--num-iter", "1", "--warmup-iter", "0"]
    done = run("--smoke", *small, "--save-result", "--result-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "bandwidth.json").read_text())
    assert {row["name"] for row in result["rows"]} == {
        "memcpy", "ucx", "nixl_read", "nixl_write", "engine_pull",
    }  # fmt: skip
    for row in result["rows"]:
        assert row.get("skipped") or row["B/W (GB/Sec)"] > 0, row
        if row["name"].startswith("nixl"):
            assert row["descriptors"] == row["Batch Size"], "neighbours were merged"
    assert result["ratios"].keys() == {
        "engine_pull_to_nixl_read", "nixl_read_to_memcpy", "nixl_write_to_memcpy",
    }  # fmt: skip
    assert result["ratios"]["nixl_read_to_memcpy"] > 0
    assert result["conditions"]["ucx"]["UCX_TLS"]


@pytest.mark.nixl
def test_an_option_out_of_its_range_is_named() -> None:
    done = run("--num-iter", "0")
    assert done.returncode == 2
    assert "--num-iter must be >= 1, got 0" in done.stderr
