"""May a shadow push start on this link now, and how many tokens.

A link is the port that KV arrives at, shared by every engine behind it. P pins the blocks of a
hand-off until they were read, so P is asked for one only with a grant in hand, there is one grant
at a time, and an unused grant expires.

Pure. Hosts: the decode side's connector, bench.sim."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from policy.segments import aligned


class GateReason(StrEnum):
    """Why a push may, or may not, start; also the metric label."""

    GRANTED = "granted"
    NORMAL_TRANSFER = "normal_transfer"
    PUSH_OUTSTANDING = "push_outstanding"
    NOTHING_MISSING = "nothing_missing"
    NO_FREE_KV = "no_free_kv"


@dataclass(frozen=True, slots=True, kw_only=True)
class PushLoad:
    """One wish to push, and the two ends of its link."""

    normal_transfers_in: int
    """Running or waiting, towards any engine behind the receiving port."""
    normal_transfers_out: int
    """Leaving the P instance that would send."""
    missing_tokens: int
    """What D lacks of the finished shadow prefix."""
    free_tokens: int
    """Decode memory that shadow KV may take."""


@dataclass(frozen=True, slots=True)
class PushGrant:
    tokens: int
    reason: GateReason


class LinkGate:
    """The gate of one inbound link."""

    __slots__ = ("_block_size", "_expires_s", "_lifetime_s", "_push_tokens")

    def __init__(self, *, push_tokens: int, block_size: int, lifetime_s: float) -> None:
        if push_tokens < block_size:
            raise ValueError(f"push_tokens must be >= block_size ({block_size}), got {push_tokens}")
        if not lifetime_s > 0:
            raise ValueError(f"lifetime_s must be > 0, got {lifetime_s}")
        self._push_tokens = push_tokens
        self._block_size = block_size
        self._lifetime_s = lifetime_s
        self._expires_s: float | None = None

    def ask(self, load: PushLoad, now_s: float) -> PushGrant:
        """A grant holds the link until `finished`, or until it expires."""
        grant = self._decide(load, now_s)
        if grant.reason is GateReason.GRANTED:
            self._expires_s = now_s + self._lifetime_s
        return grant

    def finished(self) -> None:
        """The push ended, well or not, or its grant is given back."""
        self._expires_s = None

    def _decide(self, load: PushLoad, now_s: float) -> PushGrant:
        wanted = aligned(min(load.missing_tokens, self._push_tokens), self._block_size)
        if wanted <= 0:
            return PushGrant(0, GateReason.NOTHING_MISSING)
        if load.normal_transfers_in > 0 or load.normal_transfers_out > 0:
            return PushGrant(0, GateReason.NORMAL_TRANSFER)
        if self._expires_s is not None and now_s < self._expires_s:
            return PushGrant(0, GateReason.PUSH_OUTSTANDING)
        tokens = aligned(min(wanted, load.free_tokens), self._block_size)
        if tokens <= 0:
            return PushGrant(0, GateReason.NO_FREE_KV)
        return PushGrant(tokens, GateReason.GRANTED)
