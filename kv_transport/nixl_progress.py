"""NIXL's progress thread, made to sleep.

NIXL can do it, but its Python API fixes the thread's delay at 0: it polls without a pause. Two
engines on a core took a fifth of it from whoever computed, and starved the kernel's own workers.

Hosts: engine.nixl and kv_transport.nixl_link, on CPUs. Does not import NIXL: the agent's class is
given."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRESS_DELAY_US = 1000
"""Longest sleep; UCX wakes the thread when something comes."""


@contextmanager
def sleeping_progress(agent: type) -> Iterator[None]:
    """Agents of this class that are made inside have a progress thread that sleeps."""
    bindings = sys.modules[agent.__module__].nixlBind
    config = bindings.nixlAgentConfig
    delay = config.pthrDelay

    def with_pause(agent_config: Any, fixed_us: int) -> None:
        delay.__set__(agent_config, max(fixed_us, PROGRESS_DELAY_US))

    members = {"pthrDelay": property(delay.__get__, with_pause)}
    bindings.nixlAgentConfig = type(config.__name__, (config,), members)
    try:
        yield
    finally:
        bindings.nixlAgentConfig = config
