"""The inbound link of a decode instance: its gate, its meter, and the log of all that moved on it.

Every pull is logged at its start, with what else was in flight, and at its end: the log alone shows
whether a shadow pull ever started beside a normal one (bench.trace_pulls). Decides nothing itself:
policy.link_gate does.

Imports neither vLLM nor torch. Host: engine.connector."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from engine.link_series import LinkReading
from engine.trace import PULL_END, PULL_GIVEN_UP, PULL_START, TracePull
from kv_transport.link_meter import LinkMeter, Transfer
from policy.link_gate import GateReason, LinkGate, PushGrant
from policy.vocabulary import KvClass

if TYPE_CHECKING:
    from collections.abc import Callable

    from policy.link_gate import LinkGateParams, LinkLoad, Wish


class PullOutcome(StrEnum):
    """How a pull ended (metric label, after its class)."""

    DONE = "done"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    """Given up; the transfer itself may still go on."""


@dataclass(slots=True)
class LinkCounts:
    """Since the engine's start."""

    asks: Counter[str] = field(default_factory=Counter)
    """For a grant, by what the gate said; likewise the next one."""
    looks: Counter[str] = field(default_factory=Counter)
    """Steps with a push to start."""
    starts: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    quarantines: int = 0
    refused_hand_offs: int = 0


class InboundLink:
    """One per decode instance. Times are of one clock, its user's."""

    def __init__(self, params: LinkGateParams, tell: Callable[[TracePull], None]) -> None:
        self.gate = LinkGate(params)
        self.meter = LinkMeter()
        self.counts = LinkCounts()
        self.tell = tell
        """Takes each line of the log."""

    def ask(self, holder: str, wish: Wish, load: LinkLoad, now_s: float) -> PushGrant:
        grant = self.gate.ask(holder, wish, load, now_s)
        self.counts.asks[grant.reason] += 1
        return grant

    def may_start(self, wish: Wish, load: LinkLoad, now_s: float) -> GateReason:
        reason = self.gate.start(wish, load, now_s).reason
        self.counts.looks[reason] += 1
        return reason

    def started(self, request_id: str, transfer: Transfer) -> None:
        now_s = transfer.started_s
        normal = self.meter.in_flight(KvClass.NORMAL, now_s)
        shadow = self.meter.in_flight(KvClass.SHADOW, now_s)
        self.meter.started(request_id, transfer)
        self.counts.starts[_start_label(transfer.kv_class, normal, shadow)] += 1
        self.tell(
            TracePull(
                t_s=now_s,
                pull=request_id,
                phase=PULL_START,
                kv_class=transfer.kv_class.value,
                tokens=transfer.tokens,
                size_bytes=transfer.size_bytes,
                peer=transfer.peer,
                normal_in_flight=normal,
                shadow_in_flight=shadow,
            )
        )

    def ended(self, request_id: str, now_s: float, *, ok: bool) -> None:
        """The connector reports that nothing of it moves any more."""
        transfer = self.meter.ended(request_id, now_s, ok=ok)
        if transfer is None:
            return
        outcome = PullOutcome.DONE if ok else PullOutcome.FAILED
        if transfer.gives_up_s is None:
            self._judge(transfer, outcome, now_s)
        self._tell_end(request_id, transfer, PULL_END, outcome, now_s)

    def gave_up(self, request_id: str, now_s: float) -> None:
        transfer = self.meter.gave_up(request_id, now_s + self.gate.params.quarantine_s)
        self._judge(transfer, PullOutcome.TIMED_OUT, now_s)
        self._tell_end(request_id, transfer, PULL_GIVEN_UP, PullOutcome.TIMED_OUT, now_s)

    def reading(self, now_s: float) -> LinkReading:
        """What a scrape shows; from another thread."""
        meter = self.meter
        return LinkReading(
            asks=dict(self.counts.asks),
            looks=dict(self.counts.looks),
            starts=dict(self.counts.starts),
            outcomes=dict(self.counts.outcomes),
            in_flight={str(one): meter.in_flight(one, now_s) for one in KvClass},
            bytes_in_flight={str(one): meter.bytes_in_flight(one) for one in KvClass},
            size_bytes={str(one): meter.totals[one].size_bytes for one in KvClass},
            busy_s={str(one): meter.totals[one].busy_s for one in KvClass},
            idle_s=0.0 if meter.idle_since_s is None else now_s - meter.idle_since_s,
            quarantines=self.counts.quarantines,
            refused_hand_offs=self.counts.refused_hand_offs,
            quarantined_pairs=len(self.gate.quarantined(now_s)),
        )

    def _judge(self, transfer: Transfer, outcome: PullOutcome, now_s: float) -> None:
        self.counts.outcomes[f"{transfer.kv_class}_{outcome}"] += 1
        if outcome is PullOutcome.DONE:
            self.gate.succeeded(transfer.peer)
        else:
            self.counts.quarantines += 1
            self.gate.failed(transfer.peer, now_s)

    def _tell_end(
        self, request_id: str, transfer: Transfer, phase: str, outcome: PullOutcome, now_s: float
    ) -> None:
        self.tell(
            TracePull(
                t_s=now_s,
                pull=request_id,
                phase=phase,
                kv_class=transfer.kv_class.value,
                tokens=transfer.tokens,
                size_bytes=transfer.size_bytes,
                peer=transfer.peer,
                outcome=outcome.value,
                duration_s=now_s - transfer.started_s,
            )
        )


def _start_label(kv_class: KvClass, normal: int, shadow: int) -> str:
    """`shadow_beside_normal` is what must never be counted."""
    if kv_class is KvClass.SHADOW:
        return "shadow_beside_normal" if normal else "shadow"
    return "normal_behind_push" if shadow else "normal"
