"""NIXL's progress thread costs nothing while nothing moves."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kv_transport.nixl_progress import sleeping_progress

pytestmark = pytest.mark.nixl
LOOKS = 10


def pollers() -> set[str]:
    """Threads of this process, other than this one, that are runnable at every look."""
    threads = Path("/proc/self/task")
    found = {thread.name for thread in threads.iterdir()} - {Path("/proc/self").resolve().name}
    for _ in range(LOOKS):
        time.sleep(0.02)
        found = {
            name
            for name in found
            if (threads / name).exists()
            and (threads / name / "stat").read_text().rpartition(")")[2].split()[0] == "R"
        }
    return found


def test_the_progress_thread_sleeps_unless_it_has_work() -> None:
    nixl = pytest.importorskip("nixl._api", reason="NIXL is not installed")
    before = pollers()
    with sleeping_progress(nixl.nixl_agent):
        quiet = nixl.nixl_agent("quiet", nixl.nixl_agent_config())
        assert pollers() <= before
    busy = nixl.nixl_agent("busy", nixl.nixl_agent_config())
    assert len(pollers() - before) == 1  # what it would do, and does again outside
    del quiet, busy
