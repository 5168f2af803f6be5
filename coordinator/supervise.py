"""A cluster owned by a command, in the foreground or by a supervisor that is left running.

The supervisor is the foreground command itself in a session of its own; `state.json` is how the
other commands follow it. Host: coordinator.cli."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from coordinator import run_state
from coordinator.examples import client_examples
from coordinator.local_cluster import COORDINATOR, LocalCluster
from coordinator.processes import send
from coordinator.progress import Progress, output_console, say
from coordinator.run_state import ClusterState, RunDirBusy
from coordinator.start_errors import ClusterStartError, tail_of
from engine.launch import import_environment

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

DOWN_TIMEOUT_S = 60.0
_FOLLOW_S = 0.2
_SUPERVISOR_LOG = "supervisor.log"


def run_in_foreground(config: Path, run_dir: Path, start_timeout_s: float) -> int:
    """Until Ctrl-C, SIGTERM or the coordinator's end; the exit code."""
    _end_as_by_ctrl_c()
    console = output_console()
    try:
        with (
            Progress(console) as progress,
            LocalCluster(
                config, run_dir, on_change=progress.update, start_timeout_s=start_timeout_s
            ) as cluster,
        ):
            say(console, client_examples(cluster.url, cluster.state.models))
            say(console, "Ctrl-C stops everything.")
            exit_text = cluster.wait()
    except (ClusterStartError, RunDirBusy) as error:
        _complain(str(error))
        return 1
    except KeyboardInterrupt:
        say(console, "stopped: no process is left")
        return 0
    _complain(f"{COORDINATOR} {exit_text}; everything was stopped, see {cluster.log(COORDINATOR)}")
    return 1


def run_detached(config: Path, run_dir: Path, start_timeout_s: float) -> int:
    """Returns when the supervisor's cluster is ready, or with its error; the exit code."""
    try:
        run_state.take_lock(run_dir).close()
    except RunDirBusy as error:
        _complain(str(error))
        return 1
    console = output_console()
    supervisor = _start_supervisor(config, run_dir, start_timeout_s)
    try:
        with Progress(console) as progress:
            state = _follow(supervisor, run_dir, progress)
    except KeyboardInterrupt:
        supervisor.terminate()
        supervisor.wait()
        say(console, "stopped: no process is left")
        return 130
    if state is None or state.url is None:
        _complain("\n".join(tail_of(run_dir / "logs" / _SUPERVISOR_LOG)))
        return 1
    if state.status != "ready" or supervisor.poll() is not None:
        _complain(state.error or f"{config}: the cluster ended, it was {state.status}")
        return 1
    say(console, client_examples(state.url, state.models))
    say(console, f"Stop it with: shadowprefill down --run-dir {run_dir}")
    return 0


def end_cluster(run_dir: Path) -> bool:
    """Asks the owner of the run directory to stop; whether all of it is gone in time."""
    state = run_state.read_state(run_dir)
    if state is None or not state.supervised():
        return run_state.free_within(run_dir, DOWN_TIMEOUT_S)
    send(state.supervisor_pid, signal.SIGTERM)
    deadline = time.monotonic() + DOWN_TIMEOUT_S
    if not run_state.free_within(run_dir, DOWN_TIMEOUT_S):
        return False
    # It lets go of the directory a moment before it ends.
    while state.supervised():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def _start_supervisor(
    config: Path, run_dir: Path, start_timeout_s: float
) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "shadowprefill", "up", str(config)]
    argv += ["--run-dir", str(run_dir), "--start-timeout", str(start_timeout_s)]
    logs = run_dir / "logs"
    logs.mkdir(exist_ok=True)
    with (logs / _SUPERVISOR_LOG).open("wb") as log:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, **import_environment()},
        )


def _follow(
    supervisor: subprocess.Popen[bytes], run_dir: Path, progress: Progress
) -> ClusterState | None:
    """The state once it is ready or the supervisor ended; None if that one never wrote any."""
    while True:
        ended = supervisor.poll() is not None
        state = run_state.read_state(run_dir)
        written = state is not None and state.supervisor_pid == supervisor.pid
        if state is not None and written:
            progress.update(state)
            if state.status == "ready" or ended:
                return state
        if ended:
            return None
        time.sleep(_FOLLOW_S)


def _end_as_by_ctrl_c() -> None:
    """The cluster is stopped by leaving its block: SIGTERM and a hang-up unwind as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves SIGHUP
            signal.signal(number, interrupt)


def _complain(text: str) -> None:
    say(output_console(stderr=True), text)
