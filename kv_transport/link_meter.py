"""What the inbound link of an instance carries: counted from the starts and ends of its transfers.

A transfer counts until the connector reports its end, whatever became of the request that asked for
it: an aborted one still fills the link. One that was given up counts until its peer may be tried
again: it moved nothing for as long as the limit was, and may never end.

No clock of its own. Hosts: engine.inbound, engine.transfers."""

from __future__ import annotations

from dataclasses import dataclass, field

from policy.vocabulary import KvClass


@dataclass(slots=True, kw_only=True)
class Transfer:
    """One in flight. Its class is that of the KV that it brings."""

    kv_class: KvClass
    size_bytes: int
    tokens: int
    peer: str
    started_s: float
    gives_up_s: float | None = None
    """Set once it was given up: from then on it counts no more."""


@dataclass(slots=True)
class ClassTotals:
    """Of the transfers that ended well; a transfer lasts from its post to the engine's notice."""

    transfers: int = 0
    size_bytes: int = 0
    busy_s: float = 0.0

    @property
    def bytes_per_s(self) -> float:
        """Achieved, the engine's polling included; 0 before the first one."""
        return self.size_bytes / self.busy_s if self.busy_s > 0 else 0.0


def _totals() -> dict[KvClass, ClassTotals]:
    return {kv_class: ClassTotals() for kv_class in KvClass}


@dataclass(slots=True)
class LinkMeter:
    """Of one instance. `idle_since_s` is None while anything is in flight."""

    totals: dict[KvClass, ClassTotals] = field(default_factory=_totals)
    idle_since_s: float | None = 0.0
    _in_flight: dict[str, Transfer] = field(default_factory=dict)

    def __contains__(self, transfer_id: str) -> bool:
        return transfer_id in self._in_flight

    def started(self, transfer_id: str, transfer: Transfer) -> None:
        assert transfer_id not in self._in_flight, transfer_id
        self._in_flight[transfer_id] = transfer
        self.idle_since_s = None

    def gave_up(self, transfer_id: str, until_s: float) -> Transfer:
        """Nobody waits for it any more; it may still end, and till then counts until `until_s`."""
        transfer = self._in_flight[transfer_id]
        transfer.gives_up_s = until_s
        return transfer

    def overdue(self, limit_s: float, now_s: float) -> list[str]:
        """Those that last longer than the limit and were not given up."""
        return [
            transfer_id
            for transfer_id, transfer in self._in_flight.items()
            if transfer.gives_up_s is None and now_s - transfer.started_s > limit_s
        ]

    def ended(self, transfer_id: str, now_s: float, *, ok: bool) -> Transfer | None:
        """None if it was not in flight: a notice without bytes."""
        transfer = self._in_flight.pop(transfer_id, None)
        if transfer is None:
            return None
        if not self._in_flight:
            self.idle_since_s = now_s
        if ok and transfer.gives_up_s is None:
            totals = self.totals[transfer.kv_class]
            totals.transfers += 1
            totals.size_bytes += transfer.size_bytes
            totals.busy_s += now_s - transfer.started_s
        return transfer

    def in_flight(self, kv_class: KvClass, now_s: float) -> int:
        """Transfers that count."""
        return sum(
            transfer.kv_class is kv_class
            and (transfer.gives_up_s is None or now_s < transfer.gives_up_s)
            for transfer in self._in_flight.values()
        )

    def bytes_in_flight(self, kv_class: KvClass) -> int:
        return sum(
            transfer.size_bytes
            for transfer in self._in_flight.values()
            if transfer.kv_class is kv_class
        )
