"""The rows of a simulated cluster's state (`world.World`): whole numbers and floats only, -1 where
there is none, times in seconds. Compiled code sees them as records of numpy arrays."""

from __future__ import annotations

from dataclasses import dataclass

COLOCATED, PREFILL, DECODE = 0, 1, 2
"""Roles of an instance."""
WAITING, CHUNKED, TRANSFERRING = 0, 1, 2
"""Lists of an instance: not admitted yet, prompt under way, KV on the way into it: over the link,
or from its host."""
LISTS = 3
NORMAL_KV, SHADOW_KV, HOST_KV = 0, 1, 2
"""Lists of KV entries, least recently used first: cached on the instance in two classes, and what
spilled to its host."""
KV_LISTS = 3
MAX_SHADOW_CHUNKS = 8
"""Of one iteration."""
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
    host_s_per_token: float = 0.0
    """Over PCIe, in either direction."""
    host_pool_tokens: int = 0
    tpot_slo_s: float = 0.0
    gpus: int = 1
    """Of one instance."""
    first_prefill: int = 0
    """Instances that prefill for this model (colocated ones too) are numbered from here."""
    prefill_count: int = 0
    first_decode: int = 0
    decode_count: int = 0
    dedicated_instance: int = NONE
    """It prefills too, but is not among those above."""


@dataclass(slots=True)
class InstanceRow:
    """Its KV pool is divided into free, cached (evictable, in two classes) and used tokens, at any
    time."""

    model: int = 0
    role: int = COLOCATED
    pool_tokens: int = 0
    free_tokens: int = 0
    cached_tokens: int = 0
    """Of the normal class."""
    shadow_tokens: int = 0
    """Cached, of the shadow class."""
    used_tokens: int = 0
    """By running requests, and by what shadow work is writing."""
    shadow_used_tokens: int = 0
    """The latter."""
    host_used_tokens: int = 0
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
    """While none is under way: when shadow work looks whether it may run."""
    iteration_start_s: float = 0.0
    iteration_shadow_s: float = 0.0
    """What shadow tokens added to the iteration under way."""
    iteration_is_decode_only: int = 0
    iteration_is_routed: int = 0
    """It carries a routed call."""
    iteration_is_busy: int = 0
    """It carries anything but shadow work."""
    transfer_end_s: float = NEVER_S
    """Of the first one on the way into it."""
    last_ready_s: float = 0.0
    """Of the last one that waits for what it found elsewhere."""
    link_free_s: float = 0.0
    host_in_free_s: float = 0.0
    host_out_free_s: float = 0.0
    admission_blocked: int = 0
    routed_decodes: int = 0
    least_due_s: float = NEVER_S
    """When the next token of a normal request that decodes is due, had no iteration begun; each
    iteration moves it by the same time for all of them."""
    next_extension: int = NONE
    """Number of the iteration after which the output of a call has grown enough for its shadows."""
    credit_s: float = 0.0
    first_job: int = NONE
    queued_jobs: int = 0
    last_turn: int = 0
    shadow_chunks: int = 0
    """In the iteration under way."""
    first_push: int = NONE
    last_push: int = NONE
    push_job: int = NONE
    """On the link into it."""
    push_start: int = 0
    push_tokens: int = 0
    busy_s: float = 0.0
    evicted_tokens: int = 0
    computed_tokens: int = 0
    shadow_computed_tokens: int = 0
    shadow_hit_tokens: int = 0
    pushed_tokens: int = 0
    spilled_tokens: int = 0
    restored_tokens: int = 0


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
    ttft_slo_s: float = NEVER_S
    """Of normal traffic."""
    is_switch: int = 0
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
    due_s: float = NEVER_S
    """Of normal traffic that decodes; see `InstanceRow.least_due_s`."""
    next_extension: int = NONE
    host_tokens: int = 0
    shadow_tokens: int = 0
    oracle_tokens: int = 0
    """Parts of the cached ones."""
    moved_tokens: int = 0
    """What the decode instance lacked."""
    admitted_s: float = NEVER_S
    ready_s: float = NEVER_S
    """When all that it found is on the instance."""
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
    kind: int = 0
    model: int = NONE
    """Of the call that began last."""
    epoch: int = 0
    """Rises with each compaction: what was cached before is of no use afterwards."""
    next_call_s: float = NEVER_S


@dataclass(slots=True)
class EntryRow:
    """KV that stays on an instance: of a session, or of one request of normal traffic. It is a
    prefix: first what is of the normal class, behind it what is of the shadow class. It is either
    linked into the lists of the instance (cached) or part of a running request (used)."""

    instance: int = NONE
    epoch: int = 0
    is_used: int = 0
    tokens: int = 0
    shadow_tokens: int = 0
    host_start: int = 0
    """The host holds the tokens from here on; they may be on the instance as well."""
    host_tokens: int = 0
    host_ready_s: float = 0.0
    """When they have arrived there."""
    unused_start: int = 0
    unused_end: int = 0
    """Where a shadow computed and no call has found it yet."""


@dataclass(slots=True)
class LinkRow:
    """Place of one entry in one of the KV lists of its instance."""

    before: int = NONE
    after: int = NONE
    is_linked: int = 0
    used_s: float = 0.0
    """Last time."""


@dataclass(slots=True)
class KvListRow:
    first: int = NONE
    last: int = NONE


@dataclass(slots=True)
class JobRow:
    """The shadow of one (session, model): what it should cover, and the segment that is queued."""

    session: int = NONE
    model: int = NONE
    is_target: int = 0
    """Chosen when the newest call arrived."""
    probability: float = 0.0
    stable_tokens: int = 0
    """Of the history, as far as it is known and the next prompt will start with it."""
    queued_on: int = NONE
    next_job: int = NONE
    end_tokens: int = 0
    """Of the segment."""
    since: int = 0
    """When it joined the queue, or when its last turn ended."""
    turn_tokens: int = 0
    queued_s: float = 0.0
    is_started: int = 0
    restored_tokens: int = 0
    restore_start: int = 0
    restore_end_s: float = 0.0
    """On the way from the host, if there are any tokens."""
    pushed_to: int = NONE
    """The decode instance whose list of pushes it is in."""
    pushed_from: int = NONE
    next_push: int = NONE


@dataclass(slots=True)
class ChunkRow:
    """What an iteration computes of a job; the job may have gone elsewhere meanwhile."""

    job: int = NONE
    start: int = 0
    tokens: int = 0


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
    kinds: int = 0
    entries: int = 0
    has_shadows: int = 0
    has_oracle: int = 0
    has_host_tier: int = 0
    kv_moves: int = 0
    """From the dedicated instance to the one that a call is placed on."""
    controller: int = 0
    credit_is_total: int = 0
    accrues_always: int = 0
    beta: float = 0.0
    delta: float = 0.0
    margin: float = 0.0
    iteration_cap_s: float = 0.0
    kv_cap_share: float = 0.0
    idle_age_s: float = 0.0
    evicts_cold_first: int = 0
    predicts_tokens: int = 0
    keeps_finished: int = 1
    n_min_tokens: int = 0
    top_k: int = 0
    min_probability: float = 0.0
    segment_tokens: int = 0
    resubmit_tokens: int = 0
    finished_requests: int = 0
    events: int = 0
