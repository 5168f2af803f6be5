"""Local clusters of stand-in processes: they start at once and misbehave on demand."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from coordinator import processes
from coordinator.local_cluster import COORDINATOR, LocalCluster
from coordinator.ports import probe
from tests.free_ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from configs.schema import ClusterConfig

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = """
import http.server, os, signal, subprocess, sys, time
port, behaviours = int(sys.argv[1]), sys.argv[2].split(",")
if "fails" in behaviours:
    sys.exit("(EngineCore pid=1) ERROR 11-30 13:19:03 [core.py:1] ValueError: no such folder: x")
if "core" in behaviours:  # as an EngineCore: a child, not told to end by anybody
    subprocess.Popen(["sleep", "300"])
if "strays" in behaviours:  # leaves its group
    subprocess.Popen(["sleep", "300"], start_new_session=True)
if "stubborn" in behaviours:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "segment" in behaviours:
    from multiprocessing import resource_tracker, shared_memory
    segment = shared_memory.SharedMemory(name=f"psm_test_{port}", create=True, size=4096)
    resource_tracker.unregister(segment._name, "shared_memory")
if "mute" in behaviours:
    time.sleep(300)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *arguments): pass
http.server.ThreadingHTTPServer.allow_reuse_address = True
http.server.ThreadingHTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""


def a_config(folder: Path, attach_url: str | None = None) -> Path:
    """Two colocated instances, `first` and `second`, and a coordinator, on free ports."""
    first, second, front = free_ports(3)
    model = {"path": str(folder), "max_model_len": 256, "slo": {"ttft_s": 1.0, "tpot_s": 0.1}}
    instances: dict[str, dict[str, object]] = {
        "first": {"model": "a", "role": "colocated", "port": first},
        "second": {"model": "b", "role": "colocated", "port": second},
    }
    if attach_url is not None:
        instances["second"]["attach_url"] = attach_url
    config = {
        "profile": "cpu",
        "models": {"a": model, "b": model},
        "instances": instances,
        "coordinator": {"port": front},
    }
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def stand_ins(**behaviours: str) -> Callable[[Path, ClusterConfig, str], list[str]]:
    def command(config_path: Path, config: ClusterConfig, name: str) -> list[str]:
        port = config.coordinator.port if name == COORDINATOR else config.instances[name].port
        return [sys.executable, "-c", STAND_IN, str(port), behaviours.get(name, "")]

    return command


def a_cluster(folder: Path, start_timeout_s: float = 30.0, **behaviours: str) -> LocalCluster:
    return LocalCluster(
        a_config(folder),
        folder / "run",
        command=stand_ins(**behaviours),
        start_timeout_s=start_timeout_s,
        stop_grace_s=1.0,
    )


def commands_naming(text: str) -> list[str]:
    """Command lines of live processes, to find what a cluster would have left."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and processes.started_ticks(int(entry.name)) is not None:
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return [line for line in found if text in line]


def until(condition: Callable[[], bool], limit_s: float = 60.0) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if processes.started_ticks(pid) is not None]


def family(cluster: LocalCluster) -> list[int]:
    """All processes of the cluster, those that left their group included."""
    pids = cluster.survivors()
    assert len(pids) >= 2, pids
    return pids


@contextlib.contextmanager
def an_engine_by_hand(port: int) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", STAND_IN, str(port), ""]) as process:
        try:
            assert until(lambda: probe(f"http://127.0.0.1:{port}/health") == "")
            yield process.pid
        finally:
            process.terminate()
