"""Starts, probes, watches and stops the instances of one machine and their coordinator.

Nothing is restarted silently: an instance that exits is reported, and stays down until `restart`.
Nothing outlives the cluster, however it ends (`coordinator.warden`). Hosts: the CLI, the demo,
the tests."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

from configs.load import load_config
from configs.schema import ClusterConfig
from coordinator import run_state
from coordinator.guarded import GuardedProcesses
from coordinator.ports import coordinator_url, port_problems, probe
from coordinator.processes import started_ticks
from coordinator.run_state import ClusterState, InstanceState
from coordinator.start_errors import ClusterStartError, exit_text_of, failure_text
from engine.launch import NODE_MODULES, import_environment

if TYPE_CHECKING:
    from types import TracebackType

COORDINATOR = "coordinator"
_POLL_S = 0.2
_NOTE_SEGMENTS_EVERY_S = 15.0
_REST_GRACE_S = 1.0

Command = Callable[[Path, ClusterConfig, str], list[str]]
"""The command line of the instance with this name (or of COORDINATOR)."""


def node_command(config_path: Path, config: ClusterConfig, name: str) -> list[str]:
    """Ours: the coordinator, or the node of the instance's role."""
    if name == COORDINATOR:
        return [sys.executable, "-m", "coordinator", "--config", str(config_path)]
    module = NODE_MODULES[config.instances[name].role]
    return [sys.executable, "-m", module, "--config", str(config_path), "--instance", name]


class LocalCluster:
    """A context manager: ready inside the block, gone without a trace after it."""

    def __init__(
        self,
        config_path: Path,
        run_dir: Path,
        *,
        coordinator: bool = True,
        command: Command = node_command,
        on_change: Callable[[ClusterState], None] = lambda state: None,
        start_timeout_s: float = 300.0,
        stop_grace_s: float = 10.0,
    ) -> None:
        self.config = load_config(config_path)
        self.run_dir = run_dir
        self._config_path = config_path
        self._command = command
        self._on_change = on_change
        self._start_timeout_s = start_timeout_s
        self._stop_grace_s = stop_grace_s
        self.state = _first_state(self.config, config_path, run_dir, coordinator)
        self._lock: IO[bytes] | None = None
        self._guarded: GuardedProcesses | None = None
        self._mutex = threading.RLock()
        self._stopping = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="cluster-watch", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Of the coordinator."""
        assert self.state.url is not None, "this cluster was started without a coordinator"
        return self.state.url

    def pid(self, name: str) -> int:
        """Of the instance's API server, or of the coordinator."""
        return self._processes.pid(name)

    def survivors(self) -> list[int]:
        """Live processes of the cluster, those that left their group included."""
        return self._processes.survivors()

    def log(self, name: str) -> Path:
        return self.run_dir / "logs" / f"{name}.log"

    def start(self) -> None:
        """Returns when all answer; raises ClusterStartError or RunDirBusy, with nothing left."""
        self._lock = run_state.take_lock(self.run_dir)
        try:
            self._start_all()
            self._wait_until_ready()
            self._watcher.start()
            self.state.status = "ready"
            self._changed()
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            self.state.error = None if interrupted else str(error)
            self._stop("stopped" if interrupted else "failed")
            raise

    def stop(self) -> None:
        """Ends all processes and waits for them. A second call does nothing."""
        self._stop("stopped")

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """A signal to the whole instance: SIGKILL is its machine's death, SIGSTOP a frozen one."""
        self._processes.send(name, number)

    def restart(self, name: str) -> None:
        """Ends what is left of the instance and returns when a new one answers."""
        with self._mutex:
            self._processes.end([name], self._stop_grace_s)
            self._spawn(name)
        self._wait_for([name], fatal=[name])

    def wait(self, timeout_s: float | None = None) -> str | None:
        """Until the coordinator exits; its exit text. None after the timeout or a stop."""
        deadline = time.monotonic() + (timeout_s if timeout_s is not None else float("inf"))
        while not self._stopping.wait(_POLL_S) and time.monotonic() < deadline:
            front = self.state.instances.get(COORDINATOR)
            if front is not None and front.status == "exited":
                return front.exit_text
        return None

    @property
    def _processes(self) -> GuardedProcesses:
        assert self._guarded is not None, "the cluster is not started"
        return self._guarded

    def _start_all(self) -> None:
        problems = port_problems(self.config, coordinator=COORDINATOR in self.state.instances)
        if COORDINATOR in self.config.instances:
            problems.append(f"instances.{COORDINATOR}: this name is the coordinator's own")
        if problems:
            raise ClusterStartError("\n".join(problems))
        assert self._lock is not None
        (self.run_dir / "logs").mkdir(exist_ok=True)
        self._guarded = GuardedProcesses(
            self.run_dir / "logs", self._lock, {**os.environ, **import_environment()}
        )
        for name, state in self.state.instances.items():
            if state.log is not None:
                self.log(name).unlink(missing_ok=True)
                self._spawn(name)
        self._changed()

    def _spawn(self, name: str) -> None:
        argv = self._command(self._config_path, self.config, name)
        state = self.state.instances[name]
        state.pid = self._processes.start(name, argv, self.log(name))
        state.status, state.exit_text, state.started_unix_s = "starting", None, time.time()

    def _wait_until_ready(self) -> None:
        everything = list(self.state.instances)
        self._wait_for([name for name in everything if name != COORDINATOR], fatal=everything)
        if COORDINATOR in everything:
            self._wait_for([COORDINATOR], fatal=everything)

    def _wait_for(self, names: list[str], fatal: list[str]) -> None:
        """Until all answer; ClusterStartError if one of `fatal` exits or the time is over."""
        deadline = time.monotonic() + self._start_timeout_s
        note_at = time.monotonic() + _NOTE_SEGMENTS_EVERY_S
        waiting = dict.fromkeys(names, "")
        while waiting := self._still_waiting(waiting, fatal):
            if time.monotonic() >= deadline:
                raise ClusterStartError(self._timeout_text(waiting))
            if time.monotonic() >= note_at:
                self._processes.note_segments()
                note_at += _NOTE_SEGMENTS_EVERY_S
            time.sleep(_POLL_S)
        self._processes.note_segments()

    def _still_waiting(self, waiting: Mapping[str, str], fatal: list[str]) -> dict[str, str]:
        for name in fatal:
            self._raise_if_exited(name)
        answers = {name: self._probe(name) for name in waiting}
        return {name: problem for name, problem in answers.items() if problem}

    def _probe(self, name: str) -> str:
        """Empty if the instance answers: it is ready from then on. Else what it said."""
        state = self.state.instances[name]
        problem = probe(state.url + ("/ready" if name == COORDINATOR else "/health"))
        if not problem:
            state.status = "ready"
            state.started_after_s = time.time() - state.started_unix_s
            self._changed()
        return problem

    def _raise_if_exited(self, name: str) -> None:
        state = self.state.instances[name]
        code = self._processes.exit_code(name) if state.pid else None
        if code is None:
            return
        state.status, state.exit_text = "exited", exit_text_of(code)
        raise ClusterStartError(failure_text(name, state.exit_text, self.log(name)))

    def _timeout_text(self, waiting: Mapping[str, str]) -> str:
        lines = [f"not ready after {self._start_timeout_s:.0f} s:"]
        for name, problem in waiting.items():
            state = self.state.instances[name]
            lines.append(failure_text(name, f"{state.url}: {problem}", self.log(name)))
        return "\n".join(lines)

    def _watch(self) -> None:
        note_at = time.monotonic() + _NOTE_SEGMENTS_EVERY_S
        while not self._stopping.wait(_POLL_S):
            with self._mutex:
                for name, state in self.state.instances.items():
                    if state.status == "ready" and state.pid:
                        self._report_exit(name, state)
            if time.monotonic() >= note_at:
                self._processes.note_segments()
                note_at = time.monotonic() + _NOTE_SEGMENTS_EVERY_S

    def _report_exit(self, name: str, state: InstanceState) -> None:
        code = self._processes.exit_code(name)
        if code is None or self._stopping.is_set():
            return
        state.status, state.exit_text = "exited", exit_text_of(code)
        self._changed()
        # An EngineCore whose API server died would keep its memory and its side channel's port.
        self._processes.end([name], _REST_GRACE_S)

    def _stop(self, final: run_state.Status) -> None:
        with self._mutex:
            self._stopping.set()
            if self._lock is None:
                return
            lock, self._lock = self._lock, None
            self.state.status = "stopping"
            self._changed()
            try:
                if self._guarded is not None:
                    self._guarded.close(self._stop_grace_s)
            finally:
                for state in self.state.instances.values():
                    state.status = "exited" if state.status == "exited" else "stopped"
                self.state.status = final
                self._changed()
                lock.close()

    def _changed(self) -> None:
        with self._mutex:  # the watcher and `restart` both have something to say
            run_state.write_state(self.run_dir, self.state)
            self._on_change(self.state)


def _first_state(
    config: ClusterConfig, config_path: Path, run_dir: Path, coordinator: bool
) -> ClusterState:
    logs = run_dir / "logs"
    instances = {
        name: InstanceState(
            role=instance.role.value,
            model=instance.model,
            url=instance.url,
            log=None if instance.attach_url else str(logs / f"{name}.log"),
            metrics_url=instance.metrics_url,
        )
        for name, instance in config.instances.items()
    }
    url = coordinator_url(config) if coordinator else None
    if url is not None:
        instances[COORDINATOR] = InstanceState(
            role=COORDINATOR, model="", url=url, log=str(logs / f"{COORDINATOR}.log")
        )
    return ClusterState(
        config=str(config_path),
        url=url,
        models=list(config.models),
        supervisor_pid=os.getpid(),
        supervisor_ticks=started_ticks(os.getpid()),
        since_unix_s=time.time(),
        instances=instances,
    )
