"""May shadow KV move on this link now, and how many tokens.

A link is the port that KV arrives at. Shadow KV moves over it in pushes, one at a time, and only
while no normal transfer runs or waits on either end; so one that arrives waits for at most the push
in flight. P pins the blocks of a hand-off until they were read, so P is asked for one only with a
grant in hand; a grant that nobody uses expires. A pair of which a transfer failed or timed out gets
no push for a while: the other pairs of both nodes go on.

Pure. Hosts: engine.inbound, engine.connector; the simulator uses `push_tokens_now`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import NamedTuple

from policy.segments import aligned


class GateReason(StrEnum):
    """Why a push may, or may not, start; also the metric label."""

    GRANTED = "granted"
    NOTHING_MISSING = "nothing_missing"
    TOO_LONG = "too_long"
    """D lacks more of it than one push carries: a shorter one must come before."""
    TRUNCATED_BY_CAP = "truncated_by_cap"
    """It will never fit: waiting for room is of no use."""
    QUARANTINED = "quarantined"
    NO_FREE_KV = "no_free_kv"
    NORMAL_TRANSFER_IN = "normal_transfer_in"
    NORMAL_TRANSFER_OUT = "normal_transfer_out"
    REQUESTS_WAITING = "requests_waiting"
    NO_SLOT = "no_slot"
    PUSH_OUTSTANDING = "push_outstanding"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkGateParams:
    push_tokens: int
    """Most tokens of one push."""
    block_size: int
    grant_s: float
    """A grant that was not used within this time is void."""
    quarantine_s: float
    """How long a pair that failed gets no push."""

    def __post_init__(self) -> None:
        if self.push_tokens < self.block_size:
            raise ValueError(
                f"shadow.push_tokens must be >= block_size ({self.block_size}), "
                f"got {self.push_tokens}"
            )
        if not self.grant_s > 0:
            raise ValueError(f"shadow.grant_s must be > 0, got {self.grant_s}")
        if not self.quarantine_s >= 0:
            raise ValueError(f"shadow.quarantine_s must be >= 0, got {self.quarantine_s}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLoad:
    """Both ends of a link and the instance behind it, when somebody wants to push."""

    normal_in: int = 0
    """Normal transfers towards the receiving port, running or waiting."""
    normal_out: int = 0
    """Those leaving the instance that would send."""
    requests_waiting: int = 0
    """Calls that D has not begun: memory and slots are theirs first."""
    free_slots: int = 1
    """Requests that D can still run; a pull takes one for as long as it lasts."""
    pushes_running: int = 0
    pushes_waiting: int = 0
    """Handed over and not started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One push that somebody wants."""

    peer: str
    """Who would send."""
    missing_tokens: int
    """What D lacks of it."""
    free_tokens: int
    """Decode memory that it may take."""
    ever_fits: bool = True


class PushGrant(NamedTuple):
    tokens: int
    reason: GateReason


def push_tokens_now(
    busy: int, missing_tokens: int, free_tokens: int, push_tokens: int, block_size: int
) -> int:
    """How many tokens of what is missing may move now; `busy` counts all that closes the gate."""
    if busy > 0:
        return 0
    return max(0, aligned(min(missing_tokens, free_tokens, push_tokens), block_size))


class LinkGate:
    """The gate of one inbound link."""

    __slots__ = ("_expires_s", "_holder", "_quarantined_until_s", "params")

    def __init__(self, params: LinkGateParams) -> None:
        self.params = params
        self._holder: str | None = None
        self._expires_s = -inf
        self._quarantined_until_s: dict[str, float] = {}

    def ask(self, holder: str, wish: Wish, load: LinkLoad, now_s: float) -> PushGrant:
        """Before P is asked for a hand-off of up to so many tokens. A grant holds the slot until it
        is given back or expires; whoever holds it may ask again."""
        held = self._holder not in (None, holder) and now_s < self._expires_s
        outstanding = load.pushes_running + load.pushes_waiting + held
        refusal = self._refusal(wish, load, outstanding, now_s)
        if refusal is not GateReason.GRANTED:
            return PushGrant(0, refusal)
        size, most = self.params.block_size, self.params.push_tokens
        tokens = push_tokens_now(0, wish.missing_tokens, wish.free_tokens, most, size)
        if tokens == 0:
            return PushGrant(0, GateReason.NO_FREE_KV)
        self._holder, self._expires_s = holder, now_s + self.params.grant_s
        return PushGrant(tokens, GateReason.GRANTED)

    def give_back(self, holder: str) -> None:
        """Its hand-off is here, and counts among the pushes from now on; or it is not wanted."""
        if self._holder == holder:
            self._holder = None

    def start(self, wish: Wish, load: LinkLoad, now_s: float) -> PushGrant:
        """Of a push that was handed over: all that D lacks of it, or nothing."""
        refusal = self._refusal(wish, load, load.pushes_running, now_s)
        if refusal is not GateReason.GRANTED:
            return PushGrant(0, refusal)
        if wish.missing_tokens > self.params.push_tokens:
            return PushGrant(0, GateReason.TOO_LONG)
        if wish.missing_tokens > wish.free_tokens:
            return PushGrant(0, GateReason.NO_FREE_KV)
        return PushGrant(wish.missing_tokens, GateReason.GRANTED)

    # Pairs

    def failed(self, peer: str, now_s: float) -> None:
        """A transfer from this peer failed, or did not end in time."""
        self._quarantined_until_s[peer] = now_s + self.params.quarantine_s

    def succeeded(self, peer: str) -> None:
        """A transfer from this peer ended well, whoever asked for it."""
        self._quarantined_until_s.pop(peer, None)

    def quarantined(self, now_s: float) -> list[str]:
        """The peers that get no push now."""
        return [peer for peer, until_s in self._quarantined_until_s.items() if now_s < until_s]

    def _refusal(self, wish: Wish, load: LinkLoad, outstanding: int, now_s: float) -> GateReason:
        is_quarantined = now_s < self._quarantined_until_s.get(wish.peer, -inf)
        # What concerns the wish alone comes first: it is true however busy the link is.
        checks = (
            (wish.missing_tokens < self.params.block_size, GateReason.NOTHING_MISSING),
            (not wish.ever_fits, GateReason.TRUNCATED_BY_CAP),
            (is_quarantined, GateReason.QUARANTINED),
            (load.normal_in > 0, GateReason.NORMAL_TRANSFER_IN),
            (load.normal_out > 0, GateReason.NORMAL_TRANSFER_OUT),
            (load.requests_waiting > 0, GateReason.REQUESTS_WAITING),
            (load.free_slots <= 0, GateReason.NO_SLOT),
            (outstanding > 0, GateReason.PUSH_OUTSTANDING),
        )
        return next((reason for applies, reason in checks if applies), GateReason.GRANTED)
