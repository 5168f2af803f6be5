"""The rows of a cluster's models and instances."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.sim.hardware import MICROSECOND_S
from bench.sim.rows import COLOCATED, DECODE, PREFILL, InstanceRow, ModelRow

if TYPE_CHECKING:
    from bench.sim.approach import Approach, HostTier
    from bench.sim.cluster import Cluster
    from bench.sim.latency import LatencyModel


def instances_and_models(
    cluster: Cluster, approach: Approach
) -> tuple[list[InstanceRow], list[ModelRow]]:
    instances: list[InstanceRow] = []
    models: list[ModelRow] = []
    for number, pool in enumerate(cluster.pools):
        row = model_row(cluster, pool.latency)
        row.first_prefill = len(instances)
        row.prefill_count = pool.colocated + pool.prefill
        row.first_decode = row.first_prefill + pool.prefill
        row.decode_count = pool.decode
        if approach.host_tier is not None:
            _add_host(row, pool.latency, approach.host_tier)
        roles = [COLOCATED] * pool.colocated + [PREFILL] * pool.prefill + [DECODE] * pool.decode
        if approach.dedicated is not None:
            if pool.decode:
                raise ValueError(
                    f"approach.dedicated needs colocated instances, got the split pool of "
                    f"{pool.latency.model}"
                )
            row.dedicated_instance = len(instances) + len(roles)
            roles.append(COLOCATED)
        models.append(row)
        tokens = pool.latency.kv_pool_tokens
        instances += [
            InstanceRow(model=number, role=role, pool_tokens=tokens, free_tokens=tokens)
            for role in roles
        ]
    return instances, models


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
        tpot_slo_s=latency.tpot_slo_s(),
        gpus=shards,
    )
    if arch.linear_attention is not None:
        recurrent = hardware.operator("gdn_context")
        layers, heads = arch.linear_attention_layers, arch.linear_attention.v_heads / shards
        row.recurrent_fixed_s = layers * recurrent.t0_s
        per_token_us = recurrent.us_per_value_head * heads + recurrent.us_per_token
        row.recurrent_s_per_token = layers * per_token_us * MICROSECOND_S
    return row


def _add_host(row: ModelRow, latency: LatencyModel, tier: HostTier) -> None:
    """A KV head that several GPUs copy is spilled by one of them."""
    row.host_s_per_token = latency.kv_transfer_s(1, tier.bytes_per_s_per_gpu)
    pool_bytes = tier.bytes_per_gpu * latency.tensor_parallel
    row.host_pool_tokens = int(pool_bytes / latency.kv_bytes_per_token)
