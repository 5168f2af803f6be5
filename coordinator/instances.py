"""One engine as the coordinator sees it, and the two that a call runs on."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from policy.breaker import Breaker, BreakerParams
from policy.placement import PlacementReason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from policy.vocabulary import Role

BREAKER: Final = BreakerParams(failures=5, open_s=5.0, most_open_s=60.0)
"""Of an instance that answers its health probes and fails its calls."""

_WEIGHT_OF_NEWEST = 0.2
"""In the running mean of a D's hand-offs: they differ by the length that D lacks."""


@dataclass(slots=True, kw_only=True, eq=False)
class Instance:
    """One engine, as seen from here."""

    name: str
    url: str
    role: Role
    model: str
    healthy: bool = False
    """Answered its last health probe, and refused no connection since."""
    silent_probes: int = 0
    """Health probes in a row that got no answer in time."""
    draining: bool = False
    """Takes no new calls; those that run go on to their end."""
    registered: bool = False
    """It came while the coordinator ran: the configuration file does not know it."""
    verified: bool = True
    """Seen to serve its model; one that was registered has to be, before it gets a call."""
    suspect_until_s: float = 0.0
    """It let a call time out: others are preferred until then."""
    inflight_tokens: int = 0
    """Uncached prompt tokens (estimate) of the legs that are being prefilled there."""
    inflight_calls: int = 0
    handoffs_out: int = 0
    """Normal hand-offs of this P that no D has answered for."""
    failures: int = 0
    """Legs that failed there in a row."""
    last_error: str = field(default="", repr=False)
    breaker: Breaker = field(default_factory=lambda: Breaker(BREAKER), repr=False)
    handoff_s: float = 0.0
    """From a hand-off sent to this D to its first byte (running mean): transfer, queue, first
    iteration. 0: none was seen."""

    @property
    def takes_calls(self) -> bool:
        return self.healthy and not self.draining

    def saw_handoff(self, took_s: float) -> None:
        newest = _WEIGHT_OF_NEWEST if self.handoff_s else 1.0
        self.handoff_s += newest * (took_s - self.handoff_s)


class Pair(NamedTuple):
    """Where one call runs. Colocated (or P is skipped): both are the same object."""

    prefill: Instance
    decode: Instance
    prefill_reason: PlacementReason = PlacementReason.FIRST
    decode_reason: PlacementReason = PlacementReason.FIRST

    @property
    def colocated(self) -> bool:
        return self.prefill is self.decode

    @contextmanager
    def handing_over(self, hands_over: bool) -> Iterator[None]:
        """A call's KV leaves P until D has answered; no push leaves it then."""
        self.prefill.handoffs_out += hands_over
        try:
            yield
        finally:
            self.prefill.handoffs_out -= hands_over
