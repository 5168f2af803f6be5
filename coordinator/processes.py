"""Which processes and shared-memory segments belong to a local cluster, and how they are ended.

A cluster is found by its process groups (every instance leads one, its EngineCore and workers stay
in it) and by an environment variable that all of them inherit. Hosts: coordinator.local_cluster,
and coordinator.warden, which does the same work when the cluster's own process was killed. Standard
library only: the warden starts in milliseconds and imports nothing else. Linux: it reads /proc."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

MARK_VARIABLE = "SHADOWPREFILL_CLUSTER"
SHARED_MEMORY = Path("/dev/shm")
_MAPPED_SEGMENT = re.compile(rb" (\d+) +/dev/shm/")
_POLL_S = 0.05
_KILL_WAIT_S = 10.0


def started_ticks(pid: int) -> int | None:
    """When the process was started, in clock ticks since boot; None if it is gone or a zombie.

    A pid together with this number names one process for ever: pids are reused."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces and parentheses
    return None if fields[0] in "ZX" else int(fields[19])


def members(groups: Collection[int], mark: str = "") -> list[int]:
    """Live processes of these process groups, and those that carry the mark wherever they went."""
    found = [
        pid
        for pid in _all_pids()
        if (_group_of(pid) in groups or (mark and _carries(pid, mark)))
        and started_ticks(pid) is not None
    ]
    return [pid for pid in found if pid != os.getpid()]


def ask_to_end(groups: Collection[int], mark: str, grace_s: float) -> bool:
    """Whether all are gone before the time is over.

    In a group only the leader is asked: an API server ends its own EngineCore in order, and
    a signal to both would make it report a dead engine."""
    for pid in members(groups, mark):
        if pid in groups or _group_of(pid) not in groups:
            send(pid, signal.SIGTERM)
        send(pid, signal.SIGCONT)  # a frozen one would not even hear
    return gone_within(groups, mark, grace_s)


def kill(groups: Collection[int], mark: str = "") -> list[int]:
    """Kills what is left, also what is started meanwhile; the pids that outlive even that."""
    deadline = time.monotonic() + _KILL_WAIT_S
    while (left := members(groups, mark)) and time.monotonic() < deadline:
        for pid in left:
            send(pid, signal.SIGKILL)
        time.sleep(_POLL_S)
    return left


def gone_within(groups: Collection[int], mark: str, timeout_s: float) -> bool:
    """Whether nothing of ours is alive before the time is over."""
    deadline = time.monotonic() + timeout_s
    while members(groups, mark):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def send(pid: int, number: signal.Signals) -> None:
    """A signal to a process that may be gone already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def segments_of(pids: Iterable[int]) -> dict[str, int]:
    """Segments in /dev/shm that these processes map, with their inode: names may be reused.

    Found by inode: glibc creates a semaphore under another name than the one that it keeps."""
    inodes = set().union(*(_mapped_inodes(pid) for pid in pids))
    found = {entry.name: entry.inode() for entry in os.scandir(SHARED_MEMORY)}
    return {name: inode for name, inode in found.items() if inode in inodes}


def remove_segments(segments: Mapping[str, int]) -> list[str]:
    """Removes those that outlived their processes; never one that any process still maps."""
    left = {name: inode for name, inode in segments.items() if _inode(name) == inode}
    if not left:
        return []
    in_use = segments_of(_all_pids())
    removed = [name for name in left if name not in in_use]
    for name in removed:
        (SHARED_MEMORY / name).unlink(missing_ok=True)
    return removed


def _mapped_inodes(pid: int) -> set[int]:
    try:
        maps = Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return set()  # gone, or another user's
    return {int(inode) for inode in _MAPPED_SEGMENT.findall(maps)}


def _all_pids() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except (ProcessLookupError, PermissionError):
        return 0  # never the group of an instance


def _carries(pid: int, mark: str) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False  # gone, or another user's
    return f"{MARK_VARIABLE}={mark}".encode() in environment.split(b"\0")


def _inode(name: str) -> int | None:
    try:
        return (SHARED_MEMORY / name).stat().st_ino
    except OSError:
        return None
