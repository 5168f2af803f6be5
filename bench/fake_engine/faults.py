"""What a test may do to a fake engine while it runs. Every call is safe from another thread.

Host: bench.fake_engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Gate:
    """Open until someone closes it; whoever passes while it is closed waits for it to open."""

    def __init__(self) -> None:
        self._is_open = True
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def close(self) -> None:
        self._is_open = False

    def open(self) -> None:
        self._is_open = True
        waiting, self._waiting = self._waiting, []
        for loop, future in waiting:
            # The loop may be gone already: then nobody waits any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_resolve, future)

    async def passed(self) -> None:
        if self._is_open:
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append((loop, future))
        await future


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Faults:
    """`next_*` faults hit the generating requests that come next, one each, in the order given."""

    def __init__(self) -> None:
        self.answers = Gate()
        self.everything = Gate()
        self.handoff_is_missing = False
        self._statuses: deque[int] = deque()
        self._drops = 0
        self._cuts: deque[int] = deque()
        self._kill: Callable[[], None] | None = None

    def fail_next(self, status: int = 500, times: int = 1) -> None:
        """The next `times` requests are answered with this status and vLLM's error object."""
        self._statuses.extend([status] * times)

    def drop_next(self, times: int = 1) -> None:
        """The next `times` requests lose their connection without an answer."""
        self._drops += times

    def die_mid_stream(self, after_chunks: int, times: int = 1) -> None:
        """The next `times` streams lose their connection after so many SSE events."""
        self._cuts.extend([after_chunks] * times)

    def hang(self) -> None:
        """Generating requests are received and recorded, and not answered until `release`."""
        self.answers.close()

    def release(self) -> None:
        self.answers.open()

    def freeze(self) -> None:
        """Nothing is answered any more, /health included, and running streams fall silent."""
        self.everything.close()

    def thaw(self) -> None:
        self.everything.open()

    def forget_handoff(self, is_missing: bool = True) -> None:
        """P answers without `kv_transfer_params`, as a server without a KV connector does."""
        self.handoff_is_missing = is_missing

    def kill(self) -> None:
        """Closes the listening socket and every connection, as a killed process does."""
        assert self._kill is not None, "only a served engine can be killed"
        self._kill()

    def on_kill(self, kill: Callable[[], None]) -> None:
        self._kill = kill

    def take_status(self) -> int | None:
        return self._statuses.popleft() if self._statuses else None

    def take_drop(self) -> bool:
        if self._drops == 0:
            return False
        self._drops -= 1
        return True

    def take_cut(self) -> int | None:
        return self._cuts.popleft() if self._cuts else None
