"""When a shadow push may be asked for, and when it may start."""

from __future__ import annotations

from typing import Any

import pytest

from policy.link_gate import (
    GateReason,
    LinkGate,
    LinkGateParams,
    LinkLoad,
    PushGrant,
    Wish,
    push_tokens_now,
)

IDLE = LinkLoad()


def a_gate(**changes: Any) -> LinkGate:
    params: dict[str, Any] = {
        "push_tokens": 4096,
        "block_size": 32,
        "grant_s": 10.0,
        "quarantine_s": 60.0,
    }
    return LinkGate(LinkGateParams(**(params | changes)))


def a_wish(missing_tokens: int = 4096, free_tokens: int = 100_000, **changes: Any) -> Wish:
    fields = {"peer": "p"} | changes
    return Wish(missing_tokens=missing_tokens, free_tokens=free_tokens, **fields)


CLOSED = [
    (LinkLoad(normal_in=1), GateReason.NORMAL_TRANSFER_IN),
    (LinkLoad(normal_out=1), GateReason.NORMAL_TRANSFER_OUT),
    (LinkLoad(requests_waiting=1), GateReason.REQUESTS_WAITING),
    (LinkLoad(free_slots=0), GateReason.NO_SLOT),
    (LinkLoad(pushes_running=1), GateReason.PUSH_OUTSTANDING),
    (LinkLoad(normal_in=1, pushes_running=1), GateReason.NORMAL_TRANSFER_IN),
]


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        (a_wish(4096), PushGrant(4096, GateReason.GRANTED)),
        (a_wish(5000), PushGrant(4096, GateReason.GRANTED)),
        (a_wish(100), PushGrant(96, GateReason.GRANTED)),
        (a_wish(31), PushGrant(0, GateReason.NOTHING_MISSING)),
        (a_wish(-64), PushGrant(0, GateReason.NOTHING_MISSING)),
        (a_wish(4096, 1000), PushGrant(992, GateReason.GRANTED)),
        (a_wish(4096, 31), PushGrant(0, GateReason.NO_FREE_KV)),
        (a_wish(4096, -1), PushGrant(0, GateReason.NO_FREE_KV)),
        (a_wish(ever_fits=False), PushGrant(0, GateReason.TRUNCATED_BY_CAP)),
    ],
)
def test_a_grant_is_for_as_much_as_one_push_carries_and_fits(
    wish: Wish, expected: PushGrant
) -> None:
    assert a_gate().ask("job", wish, IDLE, now_s=0.0) == expected


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        (a_wish(4096), PushGrant(4096, GateReason.GRANTED)),
        (a_wish(100), PushGrant(100, GateReason.GRANTED)),
        (a_wish(4097), PushGrant(0, GateReason.TOO_LONG)),
        (a_wish(31), PushGrant(0, GateReason.NOTHING_MISSING)),
        (a_wish(100, 99), PushGrant(0, GateReason.NO_FREE_KV)),
        (a_wish(100, 100), PushGrant(100, GateReason.GRANTED)),
        (a_wish(ever_fits=False), PushGrant(0, GateReason.TRUNCATED_BY_CAP)),
    ],
)
def test_a_push_that_was_handed_over_starts_whole_or_not_at_all(
    wish: Wish, expected: PushGrant
) -> None:
    assert a_gate().start(wish, IDLE, now_s=0.0) == expected


@pytest.mark.parametrize(("load", "reason"), CLOSED)
def test_nothing_is_granted_or_started_on_a_link_in_use(load: LinkLoad, reason: GateReason) -> None:
    assert a_gate().ask("job", a_wish(), load, now_s=0.0) == PushGrant(0, reason)
    assert a_gate().start(a_wish(), load, now_s=0.0) == PushGrant(0, reason)


def test_a_push_that_waits_keeps_others_from_being_asked_for_but_may_itself_start() -> None:
    load = LinkLoad(pushes_waiting=1)
    assert a_gate().ask("job", a_wish(), load, 0.0).reason is GateReason.PUSH_OUTSTANDING
    assert a_gate().start(a_wish(), load, 0.0).reason is GateReason.GRANTED


def test_one_grant_holds_the_link_until_it_is_given_back() -> None:
    gate = a_gate()
    assert gate.ask("a", a_wish(), IDLE, now_s=0.0).reason is GateReason.GRANTED
    assert gate.ask("b", a_wish(), IDLE, now_s=1.0).reason is GateReason.PUSH_OUTSTANDING
    gate.give_back("b")  # not its own
    assert gate.ask("b", a_wish(), IDLE, now_s=1.0).reason is GateReason.PUSH_OUTSTANDING
    gate.give_back("a")
    assert gate.ask("b", a_wish(), IDLE, now_s=1.0).reason is GateReason.GRANTED


def test_a_grant_that_nobody_used_expires_and_its_holder_may_renew_it() -> None:
    gate = a_gate(grant_s=10.0)
    gate.ask("a", a_wish(), IDLE, now_s=0.0)
    assert gate.ask("a", a_wish(), IDLE, now_s=5.0).reason is GateReason.GRANTED
    assert gate.ask("b", a_wish(), IDLE, now_s=14.9).reason is GateReason.PUSH_OUTSTANDING
    assert gate.ask("b", a_wish(), IDLE, now_s=15.0).reason is GateReason.GRANTED
    assert gate.ask("a", a_wish(), IDLE, now_s=15.0).reason is GateReason.PUSH_OUTSTANDING


def test_a_refusal_holds_nothing() -> None:
    gate = a_gate()
    gate.ask("a", a_wish(), LinkLoad(normal_in=1), now_s=0.0)
    gate.ask("a", a_wish(free_tokens=0), IDLE, now_s=0.0)
    assert gate.ask("b", a_wish(), IDLE, now_s=0.0).reason is GateReason.GRANTED


def test_a_pair_that_failed_gets_no_push_for_a_while_and_others_do() -> None:
    gate = a_gate(quarantine_s=60.0)
    gate.failed("p", now_s=0.0)
    assert gate.quarantined(59.9) == ["p"]
    assert gate.start(a_wish(), IDLE, 59.9).reason is GateReason.QUARANTINED
    assert gate.ask("a", a_wish(), IDLE, 59.9).reason is GateReason.QUARANTINED
    assert gate.start(a_wish(peer="other"), IDLE, 59.9).reason is GateReason.GRANTED
    assert gate.quarantined(60.0) == []
    assert gate.start(a_wish(), IDLE, 60.0).reason is GateReason.GRANTED


def test_a_transfer_that_ends_well_ends_the_quarantine_of_its_pair() -> None:
    gate = a_gate()
    gate.failed("p", now_s=0.0)
    gate.succeeded("other")
    assert gate.quarantined(1.0) == ["p"]
    gate.succeeded("p")
    assert gate.start(a_wish(), IDLE, 1.0).reason is GateReason.GRANTED


@pytest.mark.parametrize(
    ("numbers", "tokens"),
    [
        ((0, 5000, 9000, 4096, 32), 4096),
        ((0, 100, 9000, 4096, 32), 96),
        ((0, 5000, 1000, 4096, 32), 992),
        ((0, 5000, -1, 4096, 32), 0),
        ((1, 5000, 9000, 4096, 32), 0),
    ],
)
def test_the_numbers_behind_a_push(numbers: tuple[int, int, int, int, int], tokens: int) -> None:
    assert push_tokens_now(*numbers) == tokens


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"push_tokens": 31}, r"^shadow.push_tokens must be >= block_size \(32\), got 31$"),
        ({"grant_s": 0.0}, r"^shadow.grant_s must be > 0, got 0\.0$"),
        ({"grant_s": float("nan")}, r"^shadow.grant_s must be > 0, got nan$"),
        ({"quarantine_s": -1.0}, r"^shadow.quarantine_s must be >= 0, got -1\.0$"),
    ],
)
def test_a_gate_that_could_never_open_or_close_is_refused(
    changes: dict[str, float], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        a_gate(**changes)
