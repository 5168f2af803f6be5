"""The demo says truthfully where it ran and what its models are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from bench.demo.place import processor

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("cpuinfo", "expected"),
    [
        ("model name\t: Xeon A\nflags\t: fpu avx512f\n", "Xeon A.*no bfloat16 instructions"),
        ("model name\t: Xeon B\nflags\t: fpu amx_bf16\n", "Xeon B.*bfloat16 by amx_bf16"),
        ("", "unknown.*bfloat16 instructions unknown"),
    ],
)
def test_the_processor_is_named_with_its_bfloat16_speed(
    tmp_path: Path, cpuinfo: str, expected: str
) -> None:
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert re.search(expected, processor(tmp_path / "cpuinfo"))
