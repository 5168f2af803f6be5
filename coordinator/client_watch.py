"""Cancels a call when its client goes away.

Our own protocol (coordinator.hot_protocol) says so by itself. ASGI tells it through `receive`,
which takes a task per call."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, MutableMapping

    Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Answered(Protocol):
    """The client's side of a call."""

    is_over: bool
    """The client has its whole answer: it may leave."""


class ClientWatch:
    """Of the call that the current task serves."""

    __slots__ = ("_has_cancelled", "_reply", "task")

    def __init__(self, reply: Answered) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task: asyncio.Task[Any] = task
        self._reply = reply
        self._has_cancelled = False

    def client_left(self) -> None:
        if not self._reply.is_over:
            self._has_cancelled = True
            self.task.cancel()

    def takes_back(self) -> bool:
        """Whether the task was cancelled by this watch and by nobody else: it may go on then."""
        return self._has_cancelled and self.task.uncancel() == 0


@contextmanager
def watching(receive: Receive, reply: Answered) -> Iterator[ClientWatch]:
    """Under ASGI, once the body was received."""
    watch = ClientWatch(reply)
    receiving = asyncio.create_task(_until_disconnect(receive, watch))
    try:
        yield watch
    finally:
        receiving.cancel()


async def _until_disconnect(receive: Receive, watch: ClientWatch) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    watch.client_left()
