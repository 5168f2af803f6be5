"""Sessions age, are bounded in number, and are found again by the history that a call extends."""

from __future__ import annotations

from coordinator.calls import CallKind
from coordinator.session_store import MemoryStore
from coordinator.sessions import KEPT_CALLS, CallRecord, Session

CHAT = CallKind.CHAT


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def a_store(clock: Clock, dropped: list[str] | None = None, most: int = 100) -> MemoryStore:
    names = [] if dropped is None else dropped
    return MemoryStore(
        ttl_s=60,
        max_sessions=most,
        clock=clock,
        on_dropped=lambda session: names.append(session.id),
    )


async def test_a_session_expires_when_it_was_not_used_for_its_time_to_live() -> None:
    clock, dropped = Clock(), list[str]()
    store = a_store(clock, dropped)
    session = await store.get_or_create("t", "s", CHAT)
    clock.now_s += 59
    await store.save(session)
    clock.now_s += 59
    assert await store.get("t", "s") is session
    clock.now_s += 2
    assert await store.get("t", "s") is None
    assert dropped == ["s"]


async def test_a_session_with_a_running_call_does_not_expire() -> None:
    clock = Clock()
    store = a_store(clock)
    session = await store.get_or_create("t", "s", CHAT)
    session.active_calls = 1
    clock.now_s += 1000
    assert await store.get("t", "s") is session


async def test_the_least_recently_used_session_makes_room() -> None:
    clock, dropped = Clock(), list[str]()
    store = a_store(clock, dropped, most=2)
    await store.get_or_create("t", "a", CHAT)
    await store.get_or_create("t", "b", CHAT)
    await store.get_or_create("t", "a", CHAT)
    await store.get_or_create("t", "c", CHAT)
    assert dropped == ["b"]
    assert len(store) == 2


async def test_unnamed_sessions_make_room_before_named_ones() -> None:
    clock, dropped = Clock(), list[str]()
    store = a_store(clock, dropped, most=2)
    await store.get_or_create("t", "a", CHAT)
    unnamed = await store.extend("t", CHAT, [b"1"])
    await store.get_or_create("t", "b", CHAT)
    assert dropped == [unnamed.id]


async def test_a_dropped_session_is_not_found_by_its_history() -> None:
    clock = Clock()
    store = a_store(clock)
    first = await store.extend("t", CHAT, [b"1"])
    await store.remove("t", first.id)
    assert await store.extend("t", CHAT, [b"1", b"2"]) is not first
    assert store._by_history.keys() == {("t", b"2")}, "no history is left behind"


async def test_the_longest_history_wins_and_a_running_call_cannot_be_extended() -> None:
    store = a_store(Clock())
    short = await store.extend("t", CHAT, [b"1"])
    long = await store.extend("t", CHAT, [b"1", b"2", b"3"])
    assert long is short, "extended"
    other = await store.extend("t", CHAT, [b"1"])
    assert other is not short
    assert await store.extend("t", CHAT, [b"1", b"2", b"3", b"4"]) is short
    short.active_calls = 1
    assert await store.extend("t", CHAT, [b"1", b"2", b"3", b"4", b"5"]) is other


async def test_a_session_keeps_its_last_records_only() -> None:
    session = Session(id="s", tenant="t", kind=CHAT, identified=True)
    for number in range(1, KEPT_CALLS + 11):
        session.record(CallRecord(call=number, model="m", is_switch=False))
    assert len(session.calls) == KEPT_CALLS
    assert session.calls[0].call == 11
