"""The operators run compiled and as they are, and give the same numbers."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from bench.sim import compiled as module
from bench.sim.compiled import HAS_NUMBA, compiled
from bench.sim.operators import distinct_experts, gemm_s, moe_s, prefill_attention_s

if TYPE_CHECKING:
    from collections.abc import Callable

GEMM = (17.0, 4096.0, 3584.0, 3.5e-6, 8e14, 2.9e12, 2.7)
MOE = (17.0, 4096.0, 3584.0, 8.0, 2.0, 2.0, 1.9e-5, 4e-7, 110.0, 6e14, 3.35e12, 1.8)
CHUNK = (512.0, 9000.0, 28.0, 4.0, 128.0, 1.2e-5, 6.8e14, 1.5e12, 1.19, 3e12)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [(gemm_s, GEMM), (moe_s, MOE), (prefill_attention_s, CHUNK)],
    ids=["gemm", "moe_calls_another", "attention_has_a_max"],
)
def test_compiled_is_the_same_function(
    function: Callable[..., float], arguments: tuple[float, ...]
) -> None:
    assert compiled(function)(*arguments) == pytest.approx(function(*arguments), rel=1e-13)


@pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed (extra `sim`)")
def test_compiled_code_is_not_a_copy_of_the_source() -> None:
    fast = compiled(moe_s)
    assert fast.py_func.__code__ is moe_s.__code__
    assert fast.py_func.__globals__["distinct_experts"] is compiled(distinct_experts)
    assert compiled(moe_s) is fast


def test_without_numba_functions_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HAS_NUMBA", False)
    assert compiled(gemm_s) is gemm_s


def test_numba_is_loaded_only_where_something_is_compiled() -> None:
    """vLLM starts no engine in a process that has loaded it."""
    program = "import sys, bench.sim.capacity; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
