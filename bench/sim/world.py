"""The state of a simulated cluster: rows that the event functions read and write.

The rows are plain objects, and the functions say `world.requests[r].prompt_tokens`. Compiled, the
same lines run over numpy record arrays, whose fields are the fields of these classes: whole numbers
and floats only, -1 where there is none, times in seconds."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

COLOCATED, PREFILL, DECODE = 0, 1, 2
"""Roles of an instance."""
WAITING, CHUNKED, TRANSFERRING = 0, 1, 2
"""Lists of an instance: not admitted yet, prompt under way, KV on the link into it."""
LISTS = 3
NONE = -1
NEVER_S = 1e300


@dataclass(slots=True)
class ModelRow:
    """Latency of one model; the parts that depend on tokens alone are in `World.linear_s`."""

    host_fixed_s: float = 0.0
    host_s_per_sequence: float = 0.0
    decode_fixed_s: float = 0.0
    decode_s_per_sequence: float = 0.0
    decode_s_per_context_token: float = 0.0
    decode_s_per_window_token: float = 0.0
    window_tokens: int = 0
    full_layers: float = 0.0
    window_layers: float = 0.0
    heads: float = 0.0
    kv_heads: float = 0.0
    head_dim: float = 0.0
    prefill_t0_s: float = 0.0
    prefill_flops_per_s: float = 0.0
    prefill_bytes_per_s: float = 0.0
    longest_block_ratio: float = 0.0
    kv_bytes_per_s: float = 0.0
    recurrent_fixed_s: float = 0.0
    recurrent_s_per_token: float = 0.0
    prefill_s_per_token: float = 0.0
    """What placement reckons a token of a waiting prompt with."""
    transfer_s_per_token: float = 0.0
    gpus: int = 1
    """Of one instance."""
    first_prefill: int = 0
    """Instances that prefill for this model (colocated ones too) are numbered from here."""
    prefill_count: int = 0
    first_decode: int = 0
    decode_count: int = 0


@dataclass(slots=True)
class InstanceRow:
    """Its KV pool is divided into free, cached (evictable) and used tokens, at any time."""

    model: int = 0
    role: int = COLOCATED
    pool_tokens: int = 0
    free_tokens: int = 0
    cached_tokens: int = 0
    used_tokens: int = 0
    lru_first: int = NONE
    lru_last: int = NONE
    pending_prefill_tokens: int = 0
    """Uncached tokens of everything that was placed here and is not computed yet."""
    transferring_requests: int = 0
    """On the way here; they hold their KV and their place already."""
    decode_requests: int = 0
    context_tokens: int = 0
    """Of the decodes together."""
    next_finish: int = NONE
    """Number of the iteration in which the next decode generates its last token."""
    iterations_started: int = 0
    iterations_ended: int = 0
    iteration_decodes: int = 0
    """In the iteration under way; requests that a transfer brings meanwhile are not."""
    iteration_end_s: float = NEVER_S
    transfer_end_s: float = NEVER_S
    """Of the first one on the link into it."""
    link_free_s: float = 0.0
    admission_blocked: int = 0
    busy_s: float = 0.0
    evicted_tokens: int = 0
    computed_tokens: int = 0
    shadow_computed_tokens: int = 0
    shadow_used_tokens: int = 0


@dataclass(slots=True)
class RequestRow:
    """A request of normal traffic, or a call of a session; calls of a session follow each other."""

    model: int = 0
    session: int = NONE
    prompt_tokens: int = 0
    output_tokens: int = 0
    kept_tokens: int = 0
    """Of the session's history, that the prompt starts with."""
    gap_s: float = 0.0
    arrival_s: float = NEVER_S
    next_in_list: int = NONE
    prefill_instance: int = NONE
    decode_instance: int = NONE
    uncached_tokens: int = 0
    """Reckoned when it is placed, true once it is admitted."""
    cached_tokens: int = 0
    computed_tokens: int = 0
    """Of the prompt, cached ones included."""
    chunk_tokens: int = 0
    finish_iteration: int = NONE
    """Of the instance that decodes it: each of its iterations gives one token, so there is nothing
    to count while they run."""
    host_tokens: int = 0
    shadow_tokens: int = 0
    oracle_tokens: int = 0
    """Parts of the cached ones."""
    moved_tokens: int = 0
    """What the decode instance lacked."""
    admitted_s: float = NEVER_S
    first_token_s: float = NEVER_S
    decode_admitted_s: float = NEVER_S
    transfer_end_s: float = NEVER_S
    finished_s: float = NEVER_S


@dataclass(slots=True)
class ListRow:
    """First in, first out, linked by `RequestRow.next_in_list`; a request is in one at a time."""

    first: int = NONE
    last: int = NONE
    length: int = 0


@dataclass(slots=True)
class SessionRow:
    first_request: int = 0
    calls: int = 0
    calls_begun: int = 0
    epoch: int = 0
    """Rises with each compaction: what was cached before is of no use afterwards."""
    next_call_s: float = NEVER_S


@dataclass(slots=True)
class EntryRow:
    """KV that stays on an instance: of a session, or of one request of normal traffic. It is either
    linked into the instance's LRU list (cached) or part of a running request (used)."""

    instance: int = NONE
    tokens: int = 0
    epoch: int = 0
    before: int = NONE
    after: int = NONE
    linked: int = 0


@dataclass(slots=True)
class StickyRow:
    """Of one (session, model)."""

    prefill_instance: int = NONE
    decode_instance: int = NONE


@dataclass(slots=True)
class ClusterRow:
    """What is the same for the whole run, and the counters of the loop."""

    now_s: float = 0.0
    max_batch_tokens: int = 0
    max_sequences: int = 0
    block_tokens: int = 0
    models: int = 0
    instances: int = 0
    requests: int = 0
    sessions: int = 0
    normal_requests: int = 0
    """Requests 0 to this number are normal traffic, in order of arrival."""
    next_normal: int = 0
    waiting_sessions: int = 0
    """Length of the heap."""
    move_margin_share: float = 0.0
    finished_requests: int = 0
    events: int = 0


class World(NamedTuple):
    """One row per ... ; `slots` has `max_sequences` per instance, `linear_s` and `head_s` one table
    per model."""

    cluster: Sequence[ClusterRow]
    models: Sequence[ModelRow]
    instances: Sequence[InstanceRow]
    lists: Sequence[ListRow]
    """WAITING, CHUNKED and TRANSFERRING of each instance."""
    requests: Sequence[RequestRow]
    sessions: Sequence[SessionRow]
    sticky: Sequence[StickyRow]
    entries: Sequence[EntryRow]
    slots: Any
    """Requests that an instance decodes, in order of joining."""
    heap: Any
    """Sessions by the time of their next call."""
    linear_s: Any
    head_s: Any


Row = TypeVar("Row")


def as_records(world: World) -> World:
    """For the compiled functions."""
    parts: list[Any] = [_records(part) if _are_rows(part) else np.array(part) for part in world]
    return World(*parts)


def as_rows(records: World, like: World) -> World:
    """Back into the objects of `like`."""
    for array, rows in zip(records, like, strict=True):
        if not _are_rows(rows):
            rows[:] = array.tolist()
            continue
        names = [field.name for field in fields(rows[0])]
        for record, row in zip(array.tolist(), rows, strict=True):
            for name, value in zip(names, record, strict=True):
                setattr(row, name, value)
    return like


def _are_rows(part: Any) -> bool:
    return isinstance(part, list) and bool(part) and not isinstance(part[0], (int, float))


def _records(rows: Sequence[Any]) -> np.ndarray:
    kinds = {"int": np.int64, "float": np.float64}
    dtype = np.dtype([(field.name, kinds[str(field.type)]) for field in fields(rows[0])])
    names = dtype.names or ()
    return np.array([tuple(getattr(row, name) for name in names) for row in rows], dtype=dtype)
