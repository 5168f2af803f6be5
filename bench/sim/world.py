"""The state of a simulated cluster: rows that the event functions read and write.

The functions say `world.requests[r].prompt_tokens`. Compiled, that is a field of a numpy record;
plain, of an object of the same class (`rows`): numpy records are 20 times slower outside compiled
code."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bench.sim.rows import (
    ChunkRow,
    ClusterRow,
    EntryRow,
    InstanceRow,
    JobRow,
    KvListRow,
    LinkRow,
    ListRow,
    ModelRow,
    RequestRow,
    SessionRow,
    StickyRow,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


class World(NamedTuple):
    """One row per ... ; `slots` has `max_sequences` per instance, `chunks` `MAX_SHADOW_CHUNKS`,
    `linear_s` and `head_s` one table per model."""

    cluster: Sequence[ClusterRow]
    models: Sequence[ModelRow]
    instances: Sequence[InstanceRow]
    lists: Sequence[ListRow]
    """WAITING, CHUNKED and TRANSFERRING of each instance."""
    kv_lists: Sequence[KvListRow]
    """NORMAL_KV, SHADOW_KV and HOST_KV of each instance."""
    requests: Sequence[RequestRow]
    sessions: Sequence[SessionRow]
    sticky: Sequence[StickyRow]
    jobs: Sequence[JobRow]
    chunks: Sequence[ChunkRow]
    """Of an instance's iteration."""
    entries: Sequence[EntryRow]
    links: Sequence[LinkRow]
    """Of each entry in each of the KV lists; all of the first list, then of the next."""
    slots: Any
    """Requests that an instance decodes, in order of joining."""
    heap: Any
    """Sessions by the time of their next call."""
    linear_s: Any
    head_s: Any
    next_counts: Any
    """How often a model followed another: [kind, current, next], all kinds together last."""
    told: Any
    """Of each call, how likely each model serves the next one; -1 where nobody told."""


ROWS: dict[str, type[Any]] = {
    "cluster": ClusterRow,
    "models": ModelRow,
    "instances": InstanceRow,
    "lists": ListRow,
    "kv_lists": KvListRow,
    "requests": RequestRow,
    "sessions": SessionRow,
    "sticky": StickyRow,
    "jobs": JobRow,
    "chunks": ChunkRow,
    "entries": EntryRow,
    "links": LinkRow,
}
"""The parts of a world that have rows; the others have numbers."""


def _dtype(row: type[Any]) -> np.dtype[Any]:
    kinds = {"int": np.int64, "float": np.float64}
    return np.dtype([(field.name, kinds[str(field.type)]) for field in fields(row)])


def blank(row: type[Any], count: int) -> Any:
    """So many records with the defaults of the row; compiled code takes no empty array."""
    records = np.zeros(max(1, count), dtype=_dtype(row))
    records[:] = tuple(field.default for field in fields(row))
    return records


def records_of(rows: Sequence[Any]) -> Any:
    dtype = _dtype(type(rows[0]))
    names = dtype.names or ()
    return np.array([tuple(getattr(row, name) for name in names) for row in rows], dtype=dtype)


def as_rows(records: World) -> World:
    """For the functions as they are."""
    parts: list[Any] = [
        [ROWS[name](*record) for record in part.tolist()] if name in ROWS else part.tolist()
        for name, part in zip(World._fields, records, strict=True)
    ]
    return World(*parts)


def as_records(world: World) -> World:
    """Whichever of the two it is, for columns of numbers."""
    parts: list[Any] = [
        records_of(part) if isinstance(part, list) and name in ROWS else np.asarray(part)
        for name, part in zip(World._fields, world, strict=True)
    ]
    return World(*parts)
