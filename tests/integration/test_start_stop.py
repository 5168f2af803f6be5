"""Real engines start, stop, die and fail to start without leaving anything on the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from coordinator import processes
from coordinator.local_cluster import LocalCluster
from coordinator.run_state import is_owned
from coordinator.start_errors import ClusterStartError
from tests.integration.client import until
from tests.integration.real_cluster import START_TIMEOUT_S, on_free_ports

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.vllm_cpu, pytest.mark.usefixtures("needs_tiny")]

# A worker process beside EngineCore, so that there are shared-memory segments to leak.
WITH_WORKER = {"tiny-a": {"engine_args": {"distributed_executor_backend": "mp"}}}


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if processes.started_ticks(pid) is not None]


def left_of(segments: dict[str, int]) -> list[str]:
    return [name for name in segments if (processes.SHARED_MEMORY / name).exists()]


def test_engines_stop_without_a_process_or_a_segment_left(tmp_path: Path) -> None:
    config = on_free_ports("tiny_colocated", tmp_path, models=WITH_WORKER)
    with LocalCluster(config, tmp_path / "run", start_timeout_s=START_TIMEOUT_S) as cluster:
        models = httpx.get(f"{cluster.url}/v1/models").json()["data"]
        assert {"tiny-a", "tiny-b"} <= {model["id"] for model in models}
        pids = cluster.survivors()
        segments = processes.segments_of(pids)
        assert len(pids) >= 5, "two servers, their EngineCores, the coordinator"
        assert segments, "the worker shares memory with its EngineCore"

        # Killed, it cannot clean up after itself: its segments and its EngineCore are ours to end.
        killed = processes.members({cluster.pid("tiny-a-1")})
        theirs = processes.segments_of(killed)
        cluster.kill("tiny-a-1")
        until(lambda: [*alive(killed), *left_of(theirs)], lambda left: not left)
    assert alive(pids) == []
    assert left_of(segments) == []
    assert not is_owned(tmp_path / "run")


def test_a_bad_model_path_is_told_from_the_log_and_leaves_nothing(tmp_path: Path) -> None:
    bad = {"tiny-b": {"path": str(tmp_path / "nothing-here")}}
    config = on_free_ports("tiny_colocated", tmp_path, only=("tiny-b-1",), models=bad)
    cluster = LocalCluster(config, tmp_path / "run", start_timeout_s=START_TIMEOUT_S)
    with pytest.raises(ClusterStartError) as error:
        cluster.start()
    text = str(error.value)
    assert text.startswith("tiny-b-1 exited with code 1: ")
    assert "nothing-here" in text.splitlines()[0]
    assert str(cluster.log("tiny-b-1")) in text
    assert cluster.survivors() == []
    assert not is_owned(tmp_path / "run")
