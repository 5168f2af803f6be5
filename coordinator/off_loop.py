"""Work that takes time, beside the event loop: one thing at a time, within a limit.

A result that comes too late is lost, the work is not: what it has put into a cache serves the next
call. Hosts: coordinator.routers, coordinator.learned_router."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

from coordinator.router_port import RouterFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from typing import Any

    Result = TypeVar("Result")

MAX_WAITING: Final = 32
"""More would only wait for their time limits."""


class OffLoop:
    """A thread of its own."""

    def __init__(self, name: str, timeout_s: float) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._timeout_s = timeout_s
        self._waiting: list[Future[Any]] = []

    async def run(self, work: Callable[[], Result]) -> Result:
        """Raises RouterFailed, and what the work raises."""
        self._waiting = [future for future in self._waiting if not future.done()]
        if len(self._waiting) >= MAX_WAITING:
            raise RouterFailed(f"{MAX_WAITING} choices wait already")
        future = self._pool.submit(work)
        self._waiting.append(future)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            raise RouterFailed(f"no choice within {self._timeout_s:g} s") from None
