"""Threads of an engine stay on their cores."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from engine.cores import CoresInvalid, bind_thread, bound_cpus

BINDING = """
import os
from engine.cores import bind_thread
core = max(os.sched_getaffinity(0))
bind_thread(str(core))
assert os.sched_getaffinity(0) == {core}
"""


def test_a_bound_thread_runs_on_its_core() -> None:
    # In a process of its own: a narrowed affinity would stay.
    done = subprocess.run(
        [sys.executable, "-c", BINDING], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_cores_that_this_machine_lacks_are_refused_with_those_that_it_has() -> None:
    here = sorted(os.sched_getaffinity(0))
    with pytest.raises(CoresInvalid, match="got '9999'") as error:
        bind_thread("9999")
    assert str(here) in str(error.value)
    assert sorted(os.sched_getaffinity(0)) == here


@pytest.mark.parametrize(
    ("binding", "expected"),
    [(None, None), ("auto", None), ("nobind", None), ("0-3|4-7", "0-3,4-7"), ("1", "1")],
)
def test_vllms_words_bind_nothing(binding: str | None, expected: str | None) -> None:
    assert bound_cpus(binding) == expected
