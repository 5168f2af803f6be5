"""When a shadow push may start."""

from __future__ import annotations

import pytest

from policy.link_gate import GateReason, LinkGate, PushGrant, PushLoad


def a_gate() -> LinkGate:
    return LinkGate(push_tokens=4096, block_size=32, lifetime_s=10.0)


def a_load(
    missing_tokens: int = 5000,
    free_tokens: int = 100_000,
    transfers_in: int = 0,
    transfers_out: int = 0,
) -> PushLoad:
    return PushLoad(
        normal_transfers_in=transfers_in,
        normal_transfers_out=transfers_out,
        missing_tokens=missing_tokens,
        free_tokens=free_tokens,
    )


@pytest.mark.parametrize(
    ("load", "tokens", "reason"),
    [
        (a_load(), 4096, GateReason.GRANTED),
        (a_load(missing_tokens=100), 96, GateReason.GRANTED),
        (a_load(missing_tokens=31), 0, GateReason.NOTHING_MISSING),
        (a_load(missing_tokens=-64), 0, GateReason.NOTHING_MISSING),
        (a_load(transfers_in=1), 0, GateReason.NORMAL_TRANSFER),
        (a_load(transfers_out=1), 0, GateReason.NORMAL_TRANSFER),
        (a_load(free_tokens=1000), 992, GateReason.GRANTED),
        (a_load(free_tokens=31), 0, GateReason.NO_FREE_KV),
        (a_load(free_tokens=-1), 0, GateReason.NO_FREE_KV),
    ],
)
def test_gate(load: PushLoad, tokens: int, reason: GateReason) -> None:
    assert a_gate().ask(load, now_s=0.0) == PushGrant(tokens, reason)


def test_one_push_holds_the_link_until_it_is_finished() -> None:
    gate = a_gate()
    assert gate.ask(a_load(), now_s=0.0).reason is GateReason.GRANTED
    assert gate.ask(a_load(), now_s=1.0).reason is GateReason.PUSH_OUTSTANDING
    gate.finished()
    assert gate.ask(a_load(), now_s=1.0).reason is GateReason.GRANTED


def test_a_grant_that_nobody_used_expires() -> None:
    gate = a_gate()
    gate.ask(a_load(), now_s=0.0)
    assert gate.ask(a_load(), now_s=9.9).reason is GateReason.PUSH_OUTSTANDING
    assert gate.ask(a_load(), now_s=10.0).reason is GateReason.GRANTED


def test_a_refusal_holds_nothing() -> None:
    gate = a_gate()
    gate.ask(a_load(transfers_in=1), now_s=0.0)
    assert gate.ask(a_load(), now_s=0.0).reason is GateReason.GRANTED


@pytest.mark.parametrize(
    ("push_tokens", "lifetime_s", "message"),
    [
        (31, 1.0, r"^push_tokens must be >= block_size \(32\), got 31$"),
        (32, 0.0, r"^lifetime_s must be > 0, got 0\.0$"),
    ],
)
def test_a_gate_that_could_never_open_or_close_is_refused(
    push_tokens: int, lifetime_s: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        LinkGate(push_tokens=push_tokens, block_size=32, lifetime_s=lifetime_s)
