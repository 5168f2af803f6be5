"""Which cores an engine's threads stay on (CPU deployments; `cpus` of an instance).

vLLM's NIXL worker moves the thread that it runs in to the last core of each NUMA node, so that KV
transfers do not disturb the forward pass. Without a worker process that thread is the one that
computes: all engines of the machine would share that core. The scheduler plug-in is built after it
in the same thread, and puts the thread back."""

from __future__ import annotations

import os


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
