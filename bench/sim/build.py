"""Makes the rows of a `World` from a cluster and a workload, and refuses what could never run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from bench.sim.hardware import MICROSECOND_S
from bench.sim.world import (
    COLOCATED,
    DECODE,
    LISTS,
    NONE,
    PREFILL,
    ClusterRow,
    EntryRow,
    InstanceRow,
    ListRow,
    ModelRow,
    RequestRow,
    SessionRow,
    StickyRow,
    World,
)

if TYPE_CHECKING:
    from bench.sim.cluster import Cluster, ModelPool
    from bench.sim.latency import LatencyModel
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


def build_world(cluster: Cluster, workload: Workload) -> World:
    instances, models = _instances_and_models(cluster)
    normal = _normal_requests(cluster, workload)
    calls, sessions = _session_calls(cluster, workload, len(normal))
    requests = normal + calls
    if not requests:
        raise ValueError("a workload has at least one request")
    entries = len(sessions) * len(instances) + 2 * len(requests)
    row = ClusterRow(
        max_batch_tokens=cluster.max_batch_tokens,
        max_sequences=cluster.max_sequences,
        block_tokens=cluster.block_tokens,
        models=len(models),
        instances=len(instances),
        requests=len(requests),
        sessions=len(sessions),
        normal_requests=len(normal),
        move_margin_share=cluster.move_margin_share,
    )
    tables = [pool.latency.linear_table_s(cluster.max_batch_tokens) for pool in cluster.pools]
    heads = [
        [pool.latency.head_s(n) for n in range(cluster.max_sequences + 1)] for pool in cluster.pools
    ]
    return World(
        cluster=[row],
        models=models,
        instances=instances,
        lists=[ListRow() for _ in range(LISTS * len(instances))],
        requests=requests,
        # Compiled code cannot take the type of a row from an empty list.
        sessions=sessions or [SessionRow()],
        sticky=[StickyRow() for _ in range(max(1, len(sessions) * len(models)))],
        entries=[EntryRow() for _ in range(entries)],
        slots=[NONE] * (len(instances) * cluster.max_sequences),
        heap=[NONE] * max(1, len(sessions)),
        linear_s=[float(value) for table in tables for value in table],
        head_s=[value for head in heads for value in head],
    )


def model_row(cluster: Cluster, latency: LatencyModel) -> ModelRow:
    """The latency form, spread out into what `iteration` multiplies."""
    arch, decode = latency.architecture, latency.decode
    shards = latency.tensor_parallel
    hardware, share = latency.hardware, latency.hardware.modes[latency.mode].compute_share
    prefill = hardware.operator(f"prefill_attn_hd{arch.head_dim}")
    row = ModelRow(
        host_fixed_s=latency.host_fixed_s,
        host_s_per_sequence=latency.host_s_per_sequence,
        decode_fixed_s=decode.fixed_s,
        decode_s_per_sequence=decode.s_per_sequence,
        decode_s_per_context_token=decode.s_per_context_token,
        decode_s_per_window_token=decode.s_per_window_token,
        window_tokens=decode.window_tokens,
        full_layers=float(arch.attention_layers - arch.sliding_window_layers),
        window_layers=float(arch.sliding_window_layers),
        heads=arch.heads / shards,
        kv_heads=max(1.0, arch.kv_heads / shards),
        head_dim=float(arch.head_dim),
        prefill_t0_s=prefill.t0_s,
        prefill_flops_per_s=share * prefill.flops_tera_per_s * 1e12,
        prefill_bytes_per_s=prefill.bytes_per_s,
        longest_block_ratio=prefill.longest_block_ratio,
        kv_bytes_per_s=hardware.operator(f"decode_attn_hd{arch.head_dim}").bytes_per_s,
        prefill_s_per_token=cluster.prefill_s_per_token(latency),
        transfer_s_per_token=latency.kv_transfer_s(1, cluster.link_bytes_per_s_per_gpu),
    )
    if arch.linear_attention is not None:
        recurrent = hardware.operator("gdn_context")
        layers, heads = arch.linear_attention_layers, arch.linear_attention.v_heads / shards
        row.recurrent_fixed_s = layers * recurrent.t0_s
        per_token_us = recurrent.us_per_value_head * heads + recurrent.us_per_token
        row.recurrent_s_per_token = layers * per_token_us * MICROSECOND_S
    return row


def _instances_and_models(cluster: Cluster) -> tuple[list[InstanceRow], list[ModelRow]]:
    instances: list[InstanceRow] = []
    models: list[ModelRow] = []
    for number, pool in enumerate(cluster.pools):
        row = model_row(cluster, pool.latency)
        row.gpus = pool.latency.tensor_parallel
        row.first_prefill = len(instances)
        row.prefill_count = pool.colocated + pool.prefill
        row.first_decode = row.first_prefill + pool.prefill
        row.decode_count = pool.decode
        models.append(row)
        roles = [COLOCATED] * pool.colocated + [PREFILL] * pool.prefill + [DECODE] * pool.decode
        tokens = pool.latency.kv_pool_tokens
        instances += [
            InstanceRow(model=number, role=role, pool_tokens=tokens, free_tokens=tokens)
            for role in roles
        ]
    return instances, models


def _normal_requests(cluster: Cluster, workload: Workload) -> list[RequestRow]:
    if len(workload.normal) not in (0, len(cluster.pools)):
        raise ValueError(
            f"normal traffic is given for each of the {len(cluster.pools)} pools or for none, "
            f"got {len(workload.normal)}"
        )
    requests: list[RequestRow] = []
    for model, trace in enumerate(workload.normal):
        if trace is None:
            continue
        longest = int((trace.input_tokens + trace.output_tokens).max())
        _check_fits(cluster.pools[model], longest, trace.name)
        columns = zip(
            trace.arrival_s.tolist(),
            trace.input_tokens.tolist(),
            trace.output_tokens.tolist(),
            strict=True,
        )
        requests += [
            RequestRow(model=model, prompt_tokens=p, output_tokens=o, arrival_s=at)
            for at, p, o in columns
        ]
    # Stable: at the same time the lower pool goes first.
    return sorted(requests, key=lambda request: request.arrival_s)


def _session_calls(
    cluster: Cluster, workload: Workload, first: int
) -> tuple[list[RequestRow], list[SessionRow]]:
    calls: list[RequestRow] = []
    sessions: list[SessionRow] = []
    for number, (session, route, _) in enumerate(workload.sessions):
        if len(route) != len(session.calls):
            raise ValueError(
                f"session {session.session_id} has {len(session.calls)} calls, "
                f"its route {len(route)}"
            )
        sessions.append(
            SessionRow(
                first_request=first + len(calls),
                calls=len(route),
                next_call_s=session.arrival_s,
            )
        )
        for call, model in zip(session.calls, route, strict=True):
            if not 0 <= model < len(cluster.pools):
                raise ValueError(f"session {session.session_id} is routed to no pool: {model}")
            tokens = call.prompt_tokens + call.output_tokens
            _check_fits(cluster.pools[model], tokens, session.session_id)
            calls.append(
                RequestRow(
                    model=model,
                    session=number,
                    prompt_tokens=call.prompt_tokens,
                    output_tokens=call.output_tokens,
                    kept_tokens=call.kept_tokens,
                    gap_s=call.gap_s,
                )
            )
    return calls, sessions


def _check_fits(pool: ModelPool, tokens: int, whose: str) -> None:
    limit = pool.latency.kv_pool_tokens
    if tokens > limit:
        raise ValueError(
            f"{whose}: a request of {tokens} tokens never fits into the {limit} tokens of KV of "
            f"{pool.latency.model}"
        )
