"""NIXL's progress thread costs nothing while nothing moves."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.nixl
nixl = pytest.importorskip("nixl._api")

from engine.cores import yield_to_compute  # noqa: E402
from kv_transport.nixl_progress import sleeping_progress  # noqa: E402


def test_the_progress_thread_sleeps_unless_it_has_work() -> None:
    with sleeping_progress(nixl.nixl_agent):
        quiet = nixl.nixl_agent("quiet", nixl.nixl_agent_config())
        assert yield_to_compute() == []
    busy = nixl.nixl_agent("busy", nixl.nixl_agent_config())
    assert len(yield_to_compute()) == 1  # what it would do, and does again outside
    del quiet, busy
