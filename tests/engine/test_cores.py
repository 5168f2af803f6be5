"""Threads of an engine: on their cores, and polling ones behind those that compute."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from engine.cores import CoresInvalid, bind_thread, bound_cpus

POLLING = """
import hashlib, os, threading
from engine.cores import POLLER_NICE, yield_to_compute
busy = lambda: hashlib.pbkdf2_hmac("sha256", b"a", b"b", 10**9)  # runs without the GIL
polls = threading.Thread(target=busy, daemon=True)
sleeps = threading.Thread(target=threading.Event().wait, daemon=True)
for thread in (polls, sleeps):
    thread.start()
assert yield_to_compute() == [polls.native_id]
assert os.getpriority(os.PRIO_PROCESS, polls.native_id) == POLLER_NICE
assert os.getpriority(os.PRIO_PROCESS, sleeps.native_id) == 0
assert os.getpriority(os.PRIO_PROCESS, os.getpid()) == 0
os._exit(0)
"""
BINDING = """
import os
from engine.cores import bind_thread
core = max(os.sched_getaffinity(0))
bind_thread(str(core))
assert os.sched_getaffinity(0) == {core}
"""


# In a process of their own: a lowered priority and a narrowed affinity would stay.
@pytest.mark.parametrize("script", [POLLING, BINDING], ids=["polling", "binding"])
def test_in_a_process_of_its_own(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
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
