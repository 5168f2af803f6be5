"""A link: blocks of one memory into another one, without waiting.

The port of whoever drives transfers by itself (bench.bandwidth, tests). In production vLLM's
connector moves the bytes, and the engine's scheduler only counts them (kv_transport.link_meter)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kv_transport.errors import LinkError


class BlockCopy(NamedTuple):
    """Indices of blocks in the two memories."""

    source: int
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTransfer:
    """A transfer after which both memories may be used again."""

    transfer_id: str
    size_bytes: int
    duration_s: float
    """From post to done."""
    error: LinkError | None = None
    """What the target holds is then unknown."""


class Link(Protocol):
    """One direction between two memories whose blocks are registered and of one size."""

    def post(self, transfer_id: str, copies: Sequence[BlockCopy]) -> None:
        """Starts a transfer and returns; raises PeerGone. It cannot be called back."""

    def ended(self) -> list[EndedTransfer]:
        """Those that have ended since the last look."""

    def close(self) -> None:
        """Gives up what is in flight."""
