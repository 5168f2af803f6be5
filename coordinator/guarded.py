"""Processes that cannot outlive their cluster: started, signalled and ended here.

Every one leads a process group of its own, so that a Ctrl-C at the terminal reaches the cluster
only, and so that its EngineCore can be found after its API server died. Not a session of its own:
Linux schedules sessions as equals (autogroup), and a low priority would count inside one only
(engine.cores relies on it). A warden ends them if we cannot.
Host: coordinator.local_cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from typing import IO, TYPE_CHECKING

from coordinator import processes

if TYPE_CHECKING:
    import signal
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

_WARDEN_WAIT_S = 15.0


class StillAlive(Exception):
    """The kernel holds a process of ours (uninterruptible I/O, a driver): nothing we can end."""


class GuardedProcesses:
    """Named processes. Safe to use from several threads."""

    def __init__(self, log_dir: Path, lock: IO[bytes], environment: Mapping[str, str]) -> None:
        self._log_dir = log_dir
        self._environment = dict(environment)
        self._mark = uuid.uuid4().hex
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._segments: dict[str, dict[str, int]] = {}
        self._mutex = threading.RLock()
        self._warden = self._start_warden(lock)

    def start(self, name: str, argv: Sequence[str], log: Path) -> int:
        """Appends to the log; the pid is that of the process itself, not of a shell."""
        with self._mutex, log.open("ab") as output:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
                env={**self._environment, processes.MARK_VARIABLE: self._mark},
            )
            self._running[name] = process
            self._tell(f"group {process.pid}")
        return process.pid

    def pid(self, name: str) -> int:
        return self._running[name].pid

    def exit_code(self, name: str) -> int | None:
        return self._running[name].poll()

    def send(self, name: str, number: signal.Signals) -> None:
        """To the whole instance: the EngineCore dies, freezes or goes on with its API server."""
        self.note_segments()
        for pid in processes.members({self.pid(name)}):
            processes.send(pid, number)

    def note_segments(self) -> None:
        """Remembers which shared memory is ours while its processes can still be asked."""
        with self._mutex:
            for name, process in self._running.items():
                known = self._segments.setdefault(name, {})
                found = processes.segments_of(processes.members({process.pid}))
                for segment in found.keys() - known.keys():
                    self._tell(f"segment {found[segment]} {segment}")
                known |= found

    def end(self, names: Collection[str], grace_s: float) -> None:
        """Ends these with all that they started in their group."""
        with self._mutex:
            ending = {name: self._running[name] for name in names if name in self._running}
            self.note_segments()
            self._end_groups({process.pid for process in ending.values()}, "", grace_s)
            for name, process in ending.items():
                process.wait()
                del self._running[name]
                self._tell(f"forget {process.pid}")
                processes.remove_segments(self._segments.pop(name, {}))

    def close(self, grace_s: float) -> None:
        """Ends everything, also what left its group, and then the warden."""
        with self._mutex:
            self.end(list(self._running), grace_s)
            self._end_groups((), self._mark, grace_s)
            assert self._warden.stdin is not None
            self._warden.stdin.close()
            self._warden.wait(_WARDEN_WAIT_S)

    def _end_groups(self, groups: Collection[int], mark: str, grace_s: float) -> None:
        if processes.ask_to_end(groups, mark, grace_s):
            return
        # What these hold now is what their own clean-up did not get to.
        self.note_segments()
        left = processes.kill(groups, mark)
        if left:
            raise StillAlive(f"processes {left} did not end within a SIGKILL; look at dmesg")

    def survivors(self) -> list[int]:
        """What is alive of ours; empty after `close`."""
        return processes.members(self._groups(), self._mark)

    def _groups(self) -> set[int]:
        return {process.pid for process in self._running.values()}

    def _start_warden(self, lock: IO[bytes]) -> subprocess.Popen[bytes]:
        # It holds the lock of the run directory as well: nobody starts there before it is done.
        with (self._log_dir / "warden.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "coordinator.warden", self._mark],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(lock.fileno(),),
                env=self._environment,
            )

    def _tell(self, line: str) -> None:
        assert self._warden.stdin is not None
        try:
            os.write(self._warden.stdin.fileno(), f"{line}\n".encode())
        except BrokenPipeError:
            return  # the warden was killed: our own clean-up does not need it
