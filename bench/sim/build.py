"""Makes the records of a `World` from a cluster, a workload and an approach, and refuses what could
never run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bench.sim.approach import Credit, Dedicated, Evicts, Predicts
from bench.sim.build_models import instances_and_models
from bench.sim.rows import (
    KV_LISTS,
    LISTS,
    MAX_SHADOW_CHUNKS,
    NONE,
    ChunkRow,
    ClusterRow,
    EntryRow,
    JobRow,
    KvListRow,
    LinkRow,
    ListRow,
    RequestRow,
    SessionRow,
    StickyRow,
)
from bench.sim.shadow_budget import CONTROLLERS
from bench.sim.slos import ttft_slos_s
from bench.sim.world import World, blank, records_of
from policy.slack import Accrual

if TYPE_CHECKING:
    from bench.sim.approach import Approach
    from bench.sim.cluster import Cluster, ModelPool
    from bench.workloads.routers import Route
    from bench.workloads.sessions import RoutedSession
    from bench.workloads.trace import Trace


class RoutedWork(NamedTuple):
    """A session and, for each call, the number of the pool that serves it."""

    session: RoutedSession
    route: Route
    told: tuple[tuple[float, ...], ...] = ()
    """At each call, how likely each pool serves the next one: a router's scores or an agent's plan.
    Empty where nobody tells; then past sessions do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    normal: tuple[Trace | None, ...] = ()
    """One per pool; None where a model has no normal traffic."""
    sessions: tuple[RoutedWork, ...] = ()


def build_world(cluster: Cluster, workload: Workload, approach: Approach) -> World:
    if approach.segment_tokens < cluster.block_tokens:
        raise ValueError(
            f"approach.segment_tokens must be >= block_tokens ({cluster.block_tokens}), "
            f"got {approach.segment_tokens}"
        )
    instances, models = instances_and_models(cluster, approach)
    normal = _normal_requests(cluster, workload)
    sessions, calls = _sessions_and_calls(cluster, workload, len(normal))
    requests = np.concatenate([normal, calls])
    if len(requests) == 0:
        raise ValueError("a workload has at least one request")
    count = len(workload.sessions)
    kinds = sorted({work.session.kind for work in workload.sessions})
    sessions["kind"][:count] = [kinds.index(work.session.kind) for work in workload.sessions]
    entries = count * len(instances) + 2 * len(requests)
    row = _cluster_row(cluster, approach)
    row.models, row.instances = len(models), len(instances)
    row.requests, row.normal_requests = len(requests), len(normal)
    row.sessions, row.kinds, row.entries = count, len(kinds), entries
    tables = [pool.latency.linear_table_s(cluster.max_batch_tokens) for pool in cluster.pools]
    heads = [
        [pool.latency.head_s(n) for n in range(cluster.max_sequences + 1)] for pool in cluster.pools
    ]
    return World(
        cluster=records_of([row]),
        models=records_of(models),
        instances=records_of(instances),
        lists=blank(ListRow, LISTS * len(instances)),
        kv_lists=blank(KvListRow, KV_LISTS * len(instances)),
        requests=requests,
        sessions=sessions,
        sticky=blank(StickyRow, count * len(models)),
        jobs=_jobs(count, len(models)),
        chunks=blank(ChunkRow, MAX_SHADOW_CHUNKS * len(instances)),
        entries=blank(EntryRow, entries),
        links=blank(LinkRow, KV_LISTS * entries),
        slots=np.full(len(instances) * cluster.max_sequences, NONE),
        heap=np.full(max(1, count), NONE),
        linear_s=np.concatenate(tables),
        head_s=np.array(heads).ravel(),
        next_counts=np.zeros((len(kinds) + 1) * len(models) ** 2),
        told=_told(cluster, workload, len(calls)),
    )


def _cluster_row(cluster: Cluster, approach: Approach) -> ClusterRow:
    return ClusterRow(
        max_batch_tokens=cluster.max_batch_tokens,
        max_sequences=cluster.max_sequences,
        block_tokens=cluster.block_tokens,
        move_margin_share=cluster.move_margin_share,
        has_shadows=approach.has_shadows,
        has_oracle=approach.oracle,
        has_host_tier=approach.host_tier is not None,
        kv_moves=approach.dedicated is Dedicated.KV_MOVES,
        controller=CONTROLLERS.index(approach.controller),
        credit_is_total=approach.credit is Credit.TOTAL,
        accrues_always=approach.accrual is Accrual.ANY,
        beta=approach.beta,
        delta=approach.delta,
        margin=approach.margin,
        iteration_cap_s=approach.iteration_cap_s,
        kv_cap_share=approach.kv_cap_share,
        idle_age_s=approach.idle_age_s,
        evicts_cold_first=approach.evicts is Evicts.COLD_FIRST,
        predicts_tokens=approach.predicts is Predicts.TOKENS,
        keeps_finished=cluster.keeps_finished,
        n_min_tokens=approach.n_min_tokens,
        top_k=approach.top_k,
        min_probability=approach.min_probability,
        segment_tokens=approach.segment_tokens,
        resubmit_tokens=approach.resubmit_tokens,
    )


def _jobs(sessions: int, models: int) -> Any:
    jobs = blank(JobRow, sessions * models)
    if sessions:
        jobs["session"] = np.repeat(np.arange(sessions), models)
        jobs["model"] = np.tile(np.arange(models), sessions)
    return jobs


def _normal_requests(cluster: Cluster, workload: Workload) -> Any:
    if len(workload.normal) not in (0, len(cluster.pools)):
        raise ValueError(
            f"normal traffic is given for each of the {len(cluster.pools)} pools or for none, "
            f"got {len(workload.normal)}"
        )
    parts = [blank(RequestRow, 1)[:0]]
    for model, trace in enumerate(workload.normal):
        if trace is None:
            continue
        longest = int((trace.input_tokens + trace.output_tokens).max())
        _check_fits(cluster.pools[model], longest, trace.name)
        part = blank(RequestRow, len(trace))
        part["model"] = model
        part["prompt_tokens"] = trace.input_tokens
        part["output_tokens"] = trace.output_tokens
        part["arrival_s"] = trace.arrival_s
        part["ttft_slo_s"] = ttft_slos_s(cluster.pools[model].latency, trace.input_tokens)
        parts.append(part)
    requests = np.concatenate(parts)
    # Stable: at the same time the lower pool goes first.
    return requests[np.argsort(requests["arrival_s"], kind="stable")]


def _sessions_and_calls(cluster: Cluster, workload: Workload, first: int) -> tuple[Any, Any]:
    sessions = blank(SessionRow, len(workload.sessions))
    rows: list[tuple[int, int, int, int, int, float, int]] = []
    for number, (session, route, _) in enumerate(workload.sessions):
        if len(route) != len(session.calls):
            raise ValueError(
                f"session {session.session_id} has {len(session.calls)} calls, "
                f"its route {len(route)}"
            )
        row = sessions[number]
        row["first_request"], row["calls"] = first + len(rows), len(route)
        row["next_call_s"] = session.arrival_s
        before = NONE
        for call, model in zip(session.calls, route, strict=True):
            if not 0 <= model < len(cluster.pools):
                raise ValueError(f"session {session.session_id} is routed to no pool: {model}")
            tokens = call.prompt_tokens + call.output_tokens
            _check_fits(cluster.pools[model], tokens, session.session_id)
            is_switch = before not in (NONE, model)
            lengths = (call.prompt_tokens, call.output_tokens, call.kept_tokens)
            rows.append((model, number, *lengths, call.gap_s, is_switch))
            before = model
    calls = blank(RequestRow, len(rows))[: len(rows)]
    names = ("model", "session", "prompt_tokens", "output_tokens", "kept_tokens", "gap_s")
    for name, column in zip((*names, "is_switch"), zip(*rows, strict=True), strict=False):
        calls[name] = column
    return sessions, calls


def _told(cluster: Cluster, workload: Workload, calls: int) -> np.ndarray:
    models = len(cluster.pools)
    told = np.full((max(1, calls), models), float(NONE))
    start = 0
    for session, route, probabilities in workload.sessions:
        if probabilities:
            part = np.array(probabilities, dtype=float)
            if part.shape != (len(route), models) or (part < 0).any() or (part > 1).any():
                raise ValueError(
                    f"session {session.session_id}: told has {models} shares of 0 to 1 for each of "
                    f"its {len(route)} calls, got {probabilities}"
                )
            told[start : start + len(route)] = part
        start += len(route)
    return told.ravel()


def _check_fits(pool: ModelPool, tokens: int, whose: str) -> None:
    limit = pool.latency.kv_pool_tokens
    if tokens > limit:
        raise ValueError(
            f"{whose}: a request of {tokens} tokens never fits into the {limit} tokens of KV of "
            f"{pool.latency.model}"
        )
