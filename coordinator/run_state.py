"""The run directory of a local cluster: one owner at a time, and what that owner last said.

`RUN_DIR/lock` is held (flock) by the owner and by its warden, so a new cluster cannot start
before the processes of a killed one are gone. `RUN_DIR/state.json` is for people and for `down`
and `status`; it is never a source of truth about what runs: the lock and (pid, start time)
are."""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

import msgspec

from coordinator.processes import started_ticks

RUN_DIR_VARIABLE = "SHADOWPREFILL_RUN_DIR"
DEFAULT_RUN_DIR = Path("out/run")

Status = Literal["starting", "ready", "stopping", "stopped", "failed"]
InstanceStatus = Literal["starting", "ready", "exited", "stopped"]


class RunDirBusy(Exception):
    """Another cluster owns the run directory: stop it, or choose another one."""


@dataclass(slots=True, kw_only=True)
class InstanceState:
    """One process of the cluster, or an attached instance (pid None)."""

    role: str
    model: str
    url: str
    log: str | None
    metrics_url: str | None = None
    """Of the scheduler's own series (engine.exporter)."""
    pid: int | None = None
    status: InstanceStatus = "starting"
    started_unix_s: float = 0.0
    started_after_s: float | None = None
    """Seconds from its start to its first healthy answer."""
    exit_text: str | None = None


@dataclass(slots=True, kw_only=True)
class ClusterState:
    """What `state.json` holds."""

    config: str
    url: str | None
    models: list[str]
    supervisor_pid: int
    supervisor_ticks: int | None
    since_unix_s: float
    status: Status = "starting"
    error: str | None = None
    instances: dict[str, InstanceState] = field(default_factory=dict)

    def supervised(self) -> bool:
        """Whether the process that wrote this is still alive (and not another one with its pid)."""
        ticks = started_ticks(self.supervisor_pid)
        return ticks is not None and ticks == self.supervisor_ticks


def default_run_dir() -> Path:
    return Path(os.environ.get(RUN_DIR_VARIABLE) or DEFAULT_RUN_DIR)


def take_lock(run_dir: Path) -> IO[bytes]:
    """Owns the run directory until the file, and every copy of its descriptor, is closed."""
    run_dir.mkdir(parents=True, exist_ok=True)
    lock = (run_dir / "lock").open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise RunDirBusy(_owner_text(run_dir)) from None
    return lock


def is_owned(run_dir: Path) -> bool:
    if not (run_dir / "lock").exists():
        return False
    try:
        take_lock(run_dir).close()
    except RunDirBusy:
        return True
    return False


def free_within(run_dir: Path, timeout_s: float) -> bool:
    """Whether the owner and its warden let go of the run directory before the time is over."""
    deadline = time.monotonic() + timeout_s
    while is_owned(run_dir):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.1)
    return True


def write_state(run_dir: Path, state: ClusterState) -> None:
    """Replaces the file in one step: a reader never sees half of it."""
    target = run_dir / "state.json"
    draft = target.with_suffix(".tmp")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(state)))
    draft.replace(target)


def read_state(run_dir: Path) -> ClusterState | None:
    """None: no cluster was ever started there, or by a version that wrote something else."""
    try:
        return msgspec.json.decode((run_dir / "state.json").read_bytes(), type=ClusterState)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _owner_text(run_dir: Path) -> str:
    state = read_state(run_dir)
    if state is None or not state.supervised():
        return f"{run_dir} is still in use: the processes of an ended cluster are being stopped"
    where = f", coordinator {state.url}" if state.url else ""
    return (
        f"a cluster is already running in {run_dir} (pid {state.supervisor_pid}, "
        f"{state.status}, configuration {state.config}{where}); stop it with "
        f"`shadowprefill down --run-dir {run_dir}` or choose another --run-dir"
    )
