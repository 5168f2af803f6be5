"""What is known of an inbound link."""

from __future__ import annotations

from kv_transport.link_meter import LinkMeter, Transfer
from policy.vocabulary import KvClass


def a_transfer(kv_class: KvClass, started_s: float = 0.0, size_bytes: int = 1000) -> Transfer:
    return Transfer(
        kv_class=kv_class, size_bytes=size_bytes, tokens=32, peer="p", started_s=started_s
    )


def in_flight(meter: LinkMeter, now_s: float = 0.0) -> tuple[int, int]:
    return meter.in_flight(KvClass.NORMAL, now_s), meter.in_flight(KvClass.SHADOW, now_s)


def test_transfers_count_by_class_from_start_to_end() -> None:
    meter = LinkMeter()
    meter.started("a", a_transfer(KvClass.NORMAL))
    meter.started("b", a_transfer(KvClass.SHADOW, size_bytes=500))
    assert in_flight(meter) == (1, 1)
    assert meter.bytes_in_flight(KvClass.SHADOW) == 500
    assert "b" in meter
    ended = meter.ended("b", 2.0, ok=True)
    assert ended is not None
    assert ended.size_bytes == 500
    assert in_flight(meter) == (1, 0)
    assert "b" not in meter


def test_a_link_is_idle_since_its_last_transfer_ended() -> None:
    meter = LinkMeter()
    meter.started("a", a_transfer(KvClass.NORMAL))
    meter.started("b", a_transfer(KvClass.SHADOW))
    assert meter.idle_since_s is None
    meter.ended("a", 2.0, ok=True)
    assert meter.idle_since_s is None
    meter.ended("b", 3.0, ok=False)
    assert meter.idle_since_s == 3.0


def test_what_was_achieved_counts_what_ended_well() -> None:
    meter = LinkMeter()
    assert meter.totals[KvClass.SHADOW].bytes_per_s == 0.0
    for name, ok in (("a", True), ("b", False), ("c", True)):
        meter.started(name, a_transfer(KvClass.SHADOW, started_s=1.0))
        meter.ended(name, 3.0, ok=ok)
    totals = meter.totals[KvClass.SHADOW]
    assert (totals.transfers, totals.size_bytes, totals.bytes_per_s) == (2, 2000, 500.0)
    assert meter.totals[KvClass.NORMAL].transfers == 0


def test_a_notice_without_bytes_is_no_end() -> None:
    meter = LinkMeter()
    assert meter.ended("a", 1.0, ok=True) is None
    assert meter.idle_since_s == 0.0


def test_a_transfer_that_was_given_up_counts_for_a_while_and_never_as_achieved() -> None:
    meter = LinkMeter()
    meter.started("a", a_transfer(KvClass.NORMAL))
    meter.gave_up("a", until_s=60.0)
    assert in_flight(meter, 59.9) == (1, 0)
    assert in_flight(meter, 60.0) == (0, 0)
    assert meter.ended("a", 100.0, ok=True) is not None
    assert meter.totals[KvClass.NORMAL].transfers == 0
