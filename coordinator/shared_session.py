"""A session as flat fields that several coordinators change at once without losing anything.

Counters travel as differences and are added up; every other field is written only by whoever
changed it, so that one coordinator's call on a model and another's shadow work on the next one
meet in the store. Moments are kept on the wall clock there: monotonic clocks differ by machine.
Pure. Host: coordinator.redis_store."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from coordinator.calls import CallKind  # noqa: TC001  msgspec resolves it when it decodes
from coordinator.sessions import CallRecord, Session, Warmth

if TYPE_CHECKING:
    from collections.abc import Mapping

Counters = dict[str, int]
Values = dict[str, bytes]

IDENTITY: Final = "id"
_COUNTERS: Final = ("calls_total", "switches")
_VALUES: Final = (
    "current_model",
    "shadow_enabled",
    "history_digest",
    "hint_scores",
    "hint_plan",
    "task_kind",
    "history_bytes",
)
_WARMTH_COUNTERS: Final = (
    "computed_tokens",
    "used_tokens",
    "pushed_tokens",
    "segments",
    "superseded",
    "failed",
)
_OF_THE_MOMENT: Final = ("running_tokens", "state")
"""Of work that runs in one coordinator."""
_WARMTH_VALUES: Final = tuple(
    name
    for name in Warmth.__struct_fields__
    if name not in (*_WARMTH_COUNTERS, *_OF_THE_MOMENT, "touched_s")
)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_decode_call = msgspec.msgpack.Decoder(CallRecord).decode


class Identity(msgspec.Struct, frozen=True):
    """What never changes."""

    id: str
    tenant: str
    kind: CallKind
    identified: bool

    def session(self) -> Session:
        return Session(id=self.id, tenant=self.tenant, kind=self.kind, identified=self.identified)


@dataclass(slots=True)
class Flat:
    """A session's shared part."""

    counters: Counters = field(default_factory=dict)
    values: Values = field(default_factory=dict)


@dataclass(slots=True)
class Synced:
    """What the store had when it was last asked."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    flat: Flat = field(default_factory=Flat)
    stored_calls: set[tuple[int, float]] = field(default_factory=set)


def identity_of(session: Session) -> bytes:
    return _encode(Identity(session.id, session.tenant, session.kind, session.identified))


def identified(raw: bytes) -> Session:
    return msgspec.msgpack.decode(raw, type=Identity).session()


def flat_of(session: Session, wall_s: float) -> Flat:
    """`wall_s`: the wall clock's lead over the store's."""
    flat = Flat()
    for name in _COUNTERS:
        flat.counters[f"n:{name}"] = getattr(session, name)
    for name in _VALUES:
        flat.values[f"v:{name}"] = _encode(getattr(session, name))
    for model, warmth in session.warmth.items():
        for name in _WARMTH_COUNTERS:
            flat.counters[f"c:{name}:{model}"] = getattr(warmth, name)
        kept = {name: getattr(warmth, name) for name in _WARMTH_VALUES}
        kept["touched_s"] = warmth.touched_s and warmth.touched_s + wall_s
        flat.values[f"w:{model}"] = _encode(kept)
    return flat


def changes(now: Flat, before: Flat) -> Flat:
    """What to send: differences of counters, and the values that are other ones."""
    counters = {
        name: value - before.counters.get(name, 0)
        for name, value in now.counters.items()
        if value != before.counters.get(name, 0)
    }
    values = {name: value for name, value in now.values.items() if value != before.values.get(name)}
    return Flat(counters, values)


def merge(session: Session, stored: Mapping[bytes, bytes], sent: Flat, wall_s: float) -> Flat:
    """Brings in what others have changed. `sent`: the session when the store was asked; what has
    changed here since then stays, and is sent next time. Gives what the store has."""
    remote = _read(stored)
    since = changes(flat_of(session, wall_s), sent)
    for name, value in remote.counters.items():
        _set_counter(session, name, value + since.counters.get(name, 0))
    for name, raw in remote.values.items():
        if name not in since.values:
            _set_value(session, name, raw, wall_s)
    return remote


def encoded_call(record: CallRecord, wall_s: float) -> bytes:
    return _encode(msgspec.structs.replace(record, started_s=record.started_s + wall_s))


def merge_calls(session: Session, stored: list[bytes], synced: Synced, wall_s: float) -> None:
    """Adds the records that this coordinator has not seen, in the order of their beginning."""
    known = {_place(record) for record in session.calls}
    for raw in stored:
        record = _decode_call(raw)
        record.started_s -= wall_s
        place = _place(record)
        synced.stored_calls.add(place)
        if place not in known:
            session.record(record)
    session.calls.sort(key=lambda record: record.started_s)


def unstored_calls(session: Session, synced: Synced) -> list[CallRecord]:
    """Finished ones."""
    return [
        record
        for record in session.calls
        if record.e2el_ms is not None and _place(record) not in synced.stored_calls
    ]


def note_stored(records: list[CallRecord], synced: Synced) -> None:
    synced.stored_calls.update(map(_place, records))


def _place(record: CallRecord) -> tuple[int, float]:
    return (record.call, round(record.started_s, 3))


def _read(stored: Mapping[bytes, bytes]) -> Flat:
    flat = Flat()
    for raw_name, raw in stored.items():
        name = raw_name.decode()
        if name[:2] in ("n:", "c:"):
            flat.counters[name] = int(raw)
        elif name[:2] in ("v:", "w:"):
            flat.values[name] = raw
    return flat


def _set_counter(session: Session, name: str, value: int) -> None:
    kind, _, rest = name.partition(":")
    if kind == "n":
        setattr(session, rest, value)
    else:
        counter, _, model = rest.partition(":")
        setattr(session.warmth_of(model), counter, value)


def _set_value(session: Session, name: str, raw: bytes, wall_s: float) -> None:
    kind, _, rest = name.partition(":")
    value = _decode(raw)
    if kind == "v":
        setattr(session, rest, value)
        return
    warmth = session.warmth_of(rest)
    value["touched_s"] = value["touched_s"] and value["touched_s"] - wall_s
    for attribute, one in value.items():
        setattr(warmth, attribute, one)
