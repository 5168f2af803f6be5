"""A model's layers as times: which operators one iteration runs, how often and how wide, on one of
the GPUs that share the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.sim import operators
from bench.sim.hardware import MICROSECOND_S, TERA

if TYPE_CHECKING:
    from bench.sim.hardware import Architecture, Hardware, Operator

GEMM = "gemm_bfloat16_vllm"
ELEMENTWISE_HIDDEN = 8
"""Times the hidden size that the small kernels of a layer read and write per token."""


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """All layers of one model on `shards` GPUs, at `compute_share` of the fitted FLOP/s."""

    architecture: Architecture
    hardware: Hardware
    shards: int
    compute_share: float

    def linear_s(self, tokens: float) -> float:
        arch = self.architecture
        per_layer_s = (
            self._ffn_s(tokens) + self._elementwise_s(tokens) + 2 * self._allreduce_s(tokens)
        )
        return (
            arch.attention_layers * self._attention_projections_s(tokens)
            + arch.linear_attention_layers * self._recurrent_projections_s(tokens)
            + arch.layers * per_layer_s
        )

    def head_s(self, sequences: float) -> float:
        arch = self.architecture
        return self._gemm_s(sequences, arch.vocab / self.shards, arch.hidden)

    def decode_attention_s(self, sequences: float, context: float, window: float) -> float:
        """`window` is the sum of the contexts, each cut at the window."""
        arch = self.architecture
        attention = self.hardware.operator(f"decode_attn_hd{arch.head_dim}")
        s_per_kv_head = attention.us_per_sequence_kv_head * MICROSECOND_S

        def one_layer_s(context_tokens: float) -> float:
            return operators.decode_attention_s(
                sequences,
                context_tokens,
                self._kv_heads,
                arch.head_dim,
                attention.t0_s,
                attention.bytes_per_s,
                s_per_kv_head,
            )

        windowed = arch.sliding_window_layers
        total_s = (arch.attention_layers - windowed) * one_layer_s(context)
        total_s += windowed * one_layer_s(window)
        return total_s + arch.linear_attention_layers * self._recurrent_decode_s(sequences)

    def prefill_attention_s(self, new_tokens: float, context_tokens: float) -> float:
        arch = self.architecture
        windowed = arch.sliding_window_layers
        total_s = (arch.attention_layers - windowed) * self._chunk_s(new_tokens, context_tokens)
        if windowed:
            visible = min(context_tokens, arch.sliding_window_tokens or 0)
            total_s += windowed * self._chunk_s(new_tokens, visible)
        if arch.linear_attention is not None:
            recurrent = self.hardware.operator("gdn_context")
            total_s += arch.linear_attention_layers * operators.recurrent_prefill_s(
                new_tokens,
                arch.linear_attention.v_heads / self.shards,
                recurrent.t0_s,
                recurrent.us_per_value_head * MICROSECOND_S,
                recurrent.us_per_token * MICROSECOND_S,
            )
        return total_s

    @property
    def _kv_heads(self) -> float:
        return max(1.0, self.architecture.kv_heads / self.shards)

    def _attention_projections_s(self, tokens: float) -> float:
        arch = self.architecture
        heads = arch.heads / self.shards
        gates = 2 if arch.attention_output_gate else 1
        in_heads = gates * heads + 2 * self._kv_heads
        into_s = self._gemm_s(tokens, in_heads * arch.head_dim, arch.hidden)
        return into_s + self._gemm_s(tokens, arch.hidden, heads * arch.head_dim)

    def _recurrent_projections_s(self, tokens: float) -> float:
        linear = self.architecture.linear_attention
        if linear is None:
            return 0.0
        hidden = self.architecture.hidden
        into_s = self._gemm_s(tokens, linear.in_width / self.shards, hidden)
        return into_s + self._gemm_s(tokens, hidden, linear.out_width / self.shards)

    def _ffn_s(self, tokens: float) -> float:
        arch = self.architecture
        if arch.expert_operator is None:
            return self._mlp_s(tokens, arch.intermediate)
        experts = self.hardware.operator(arch.expert_operator)
        picked_s = operators.moe_s(
            tokens,
            arch.hidden,
            arch.intermediate / self.shards,
            arch.experts,
            arch.experts_per_token,
            arch.expert_bytes_per_weight,
            experts.t0_s,
            experts.us_per_expert * MICROSECOND_S,
            experts.tokens_lost_per_expert,
            self._flops_per_s(experts),
            experts.bytes_per_s,
            experts.power,
        )
        shared_s = 0.0
        if arch.shared_expert_intermediate:
            shared_s = self._mlp_s(tokens, arch.shared_expert_intermediate)
        return picked_s + shared_s + self._gemm_s(tokens, arch.experts, arch.hidden)

    def _mlp_s(self, tokens: float, intermediate: int) -> float:
        arch = self.architecture
        width = intermediate / self.shards
        into = 2 if arch.gated_mlp else 1
        into_s = self._gemm_s(tokens, into * width, arch.hidden)
        return into_s + self._gemm_s(tokens, arch.hidden, width)

    def _elementwise_s(self, tokens: float) -> float:
        """The activation between a dense layer's matrices counts here; experts have theirs
        inside."""
        arch, assumed = self.architecture, self.hardware.assumed
        activation = 0.0
        if arch.expert_operator is None:
            activation = (3 if arch.gated_mlp else 2) * arch.intermediate / self.shards
        return operators.elementwise_s(
            tokens,
            ELEMENTWISE_HIDDEN * arch.hidden + activation,
            assumed.kernels,
            assumed.t0_us * MICROSECOND_S,
            assumed.bytes_tera_per_s * TERA,
        )

    def _allreduce_s(self, tokens: float) -> float:
        if self.shards == 1:
            return 0.0
        reduce = self.hardware.operator(f"allreduce_tp{self.shards}")
        return operators.allreduce_s(
            tokens,
            self.architecture.hidden,
            reduce.t0_s,
            reduce.us_per_sqrt_kib * MICROSECOND_S,
            reduce.bytes_per_s,
        )

    def _recurrent_decode_s(self, sequences: float) -> float:
        linear = self.architecture.linear_attention
        if linear is None:
            return 0.0
        recurrent = self.hardware.operator("gdn_generation")
        return operators.recurrent_decode_s(
            sequences,
            linear.v_heads / self.shards,
            recurrent.t0_s,
            recurrent.us_per_value_head * MICROSECOND_S,
        )

    def _chunk_s(self, new_tokens: float, context_tokens: float) -> float:
        """One layer with attention."""
        arch = self.architecture
        prefill = self.hardware.operator(f"prefill_attn_hd{arch.head_dim}")
        decode = self.hardware.operator(f"decode_attn_hd{arch.head_dim}")
        return operators.prefill_attention_s(
            new_tokens,
            context_tokens,
            arch.heads / self.shards,
            self._kv_heads,
            arch.head_dim,
            prefill.t0_s,
            self._flops_per_s(prefill),
            prefill.bytes_per_s,
            prefill.longest_block_ratio,
            decode.bytes_per_s,
        )

    def _gemm_s(self, tokens: float, out_width: float, in_width: float) -> float:
        gemm = self.hardware.operator(GEMM)
        return operators.gemm_s(
            tokens,
            out_width,
            in_width,
            gemm.t0_s,
            self._flops_per_s(gemm),
            gemm.bytes_per_s,
            gemm.power,
        )

    def _flops_per_s(self, operator: Operator) -> float:
        return self.compute_share * operator.flops_tera_per_s * TERA


def layer_times(
    architecture: Architecture, hardware: Hardware, shards: int, compute_share: float
) -> LayerTimes:
    """Refuses a split that no engine would accept, or that nobody has measured."""
    measured = [1, *(n for n in (2, 4, 8) if f"allreduce_tp{n}" in hardware.operators)]
    if shards not in measured:
        raise ValueError(f"tensor_parallel must be one of {measured}, got {shards}")
    if architecture.heads % shards:
        raise ValueError(
            f"tensor_parallel {shards} does not divide the {architecture.heads} attention heads"
        )
    return LayerTimes(architecture, hardware, shards, compute_share)
