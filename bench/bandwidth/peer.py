"""The other process of a measurement: it holds the memory that is read and written from here."""

from __future__ import annotations

import multiprocessing
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from types import TracebackType

ANSWER_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 10.0
STOP = "stop"


class PeerFailed(Exception):
    """The other process ended or fell silent: what it printed says why."""


class Peer:
    """A context manager: runs `target(connection, *arguments)` in a process of its own.

    Spawned, not forked: NIXL and UCX keep threads."""

    def __init__(self, target: Callable[..., None], *arguments: object) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(target=target, args=(theirs, *arguments), daemon=True)
        self._theirs: Connection | None = theirs

    def __enter__(self) -> Self:
        self._process.start()
        assert self._theirs is not None
        self._theirs.close()  # only theirs is left: its death ends our waiting
        self._theirs = None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):  # it is gone already
            self._connection.send(STOP)
        self._process.join(_STOP_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def tell(self, what: object) -> None:
        self._connection.send(what)

    def answer(self) -> Any:
        """What it says next; raises PeerFailed."""
        try:
            if self._connection.poll(ANSWER_TIMEOUT_S):
                return self._connection.recv()
        except EOFError:
            raise PeerFailed("the other process of the measurement ended early") from None
        raise PeerFailed(f"the other process gave no answer within {ANSWER_TIMEOUT_S:g} s")

    def ask(self, what: object) -> Any:
        self.tell(what)
        return self.answer()
