"""A link with a bandwidth but without hardware, on any clock.

One transfer after the other at full rate. A block is read at the very moment at which its bytes
would be on the wire, so that a source that is overwritten meanwhile gives what it holds then, as
one-sided reads do."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kv_transport.errors import LinkError, PeerGone
from kv_transport.link import EndedTransfer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kv_transport.link import BlockCopy


@dataclass(slots=True)
class _Posted:
    transfer_id: str
    left: deque[BlockCopy]
    size_bytes: int
    posted_s: float


class FakeLink:
    """A `kv_transport.link.Link`. Its user advances the clock and looks at `ended`."""

    def __init__(
        self,
        copy: Callable[[BlockCopy], None],
        *,
        block_bytes: int,
        bytes_per_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._copy = copy
        self._block_bytes = block_bytes
        self._block_s = block_bytes / bytes_per_s
        self._clock = clock
        self._queue: deque[_Posted] = deque()
        self._ended: list[EndedTransfer] = []
        self._free_s = clock()
        self._is_frozen = self._is_gone = False

    def post(self, transfer_id: str, copies: Sequence[BlockCopy]) -> None:
        if self._is_gone:
            raise PeerGone(f"transfer {transfer_id}: the peer is gone; compute the prompt")
        self.advance()
        now_s = self._clock()
        if not self._queue:
            self._free_s = max(self._free_s, now_s)
        size_bytes = len(copies) * self._block_bytes
        self._queue.append(_Posted(transfer_id, deque(copies), size_bytes, now_s))

    def ended(self) -> list[EndedTransfer]:
        self.advance()
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        self._queue.clear()

    def advance(self) -> None:
        """Moves what has had its time; call it before a source changes."""
        now_s = self._clock()
        while self._queue and not self._is_frozen:
            transfer = self._queue[0]
            while transfer.left and self._free_s + self._block_s <= now_s:
                self._free_s += self._block_s
                self._copy(transfer.left.popleft())
            if transfer.left:
                return
            self._end(self._queue.popleft(), self._free_s)

    # Faults

    def freeze(self) -> None:
        """The other end stops: nothing moves, and nothing fails."""
        self.advance()
        self._is_frozen = True

    def thaw(self) -> None:
        self._is_frozen = False
        self._free_s = max(self._free_s, self._clock())

    def lose_peer(self) -> None:
        """The other end dies: what is in flight fails."""
        self.advance()
        self._is_gone = True
        error = PeerGone("the peer is gone in the middle of a transfer; compute the prompt")
        while self._queue:
            self._end(self._queue.popleft(), self._clock(), error)

    def find_peer(self) -> None:
        """It is back."""
        self._is_gone = self._is_frozen = False

    def _end(self, transfer: _Posted, now_s: float, error: LinkError | None = None) -> None:
        self._ended.append(
            EndedTransfer(
                transfer_id=transfer.transfer_id,
                size_bytes=transfer.size_bytes,
                duration_s=now_s - transfer.posted_s,
                error=error,
            )
        )
