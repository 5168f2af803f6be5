"""Which cores an engine's threads stay on, and who goes first there (CPU deployments; `cpus` of an
instance).

vLLM's NIXL worker moves the thread that it runs in to the last core of each NUMA node, so that KV
transfers do not disturb the forward pass. Without a worker process that thread is the one that
computes: all engines of the machine would share that core. The scheduler plug-in is built after it
in the same thread, and puts the thread back.

NIXL's progress thread polls without ever sleeping (its delay is fixed at 0 in NIXL's Python API).
With P and D on one core, two of them would take two thirds of it from the forward pass."""

from __future__ import annotations

import os
import time
from pathlib import Path

POLLER_NICE = 15
"""Of a thread that only polls: a thirtieth of a core that others want, all of an idle one."""
_LOOKS = 5
_LOOK_INTERVAL_S = 0.02
_THREADS = Path("/proc/self/task")


class CoresInvalid(ValueError):
    """No list of cores of this machine: change `cpus` of the instance."""


def bound_cpus(binding: str | None) -> str | None:
    """The cores of all ranks (`0-3|4-7`); None for vLLM's words `auto` and `nobind`."""
    if binding is None or binding in ("auto", "nobind"):
        return None
    return binding.replace("|", ",")


def bind_thread(cpus: str) -> None:
    """Keeps the calling thread and those that it starts on these cores; raises CoresInvalid."""
    here = sorted(os.sched_getaffinity(0))
    try:
        os.sched_setaffinity(0, _numbers(cpus))
    except (OSError, ValueError):
        raise CoresInvalid(f"cpus must be a list of cores of {here}, got {cpus!r}") from None


def _numbers(cpus: str) -> set[int]:
    numbers: set[int] = set()
    for part in cpus.split(","):
        first, dash, last = part.partition("-")
        numbers.update(range(int(first), int(last if dash else first) + 1))
    return numbers


def yield_to_compute() -> list[int]:
    """Lowers the priority of threads of this process that never sleep, and returns their ids.

    For a moment in which nothing is computed, as before the first request: then only a thread that
    polls is runnable at every look. Threads of a compute pool sleep until they have work."""
    own = os.getpid()
    pollers = {int(thread.name) for thread in _THREADS.iterdir()} - {own}
    for _ in range(_LOOKS):
        time.sleep(_LOOK_INTERVAL_S)
        pollers = {thread for thread in pollers if _is_runnable(thread)}
    for thread in pollers:
        os.setpriority(os.PRIO_PROCESS, thread, POLLER_NICE)
    return sorted(pollers)


def _is_runnable(thread: int) -> bool:
    try:
        fields = (_THREADS / str(thread) / "stat").read_text()
    except FileNotFoundError:
        return False  # it has ended
    return fields.rpartition(")")[2].split()[0] == "R"
