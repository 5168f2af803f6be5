"""The two tables that come with the simulator, typed: one GPU's operator coefficients, and the
architectures of the models. Both name the source of every number in `data/`."""

from __future__ import annotations

# Read at run time too: msgspec decodes by these annotations.
from collections.abc import Mapping  # noqa: TC003
from enum import StrEnum
from functools import cache
from importlib import resources

import msgspec

MICROSECOND_S = 1e-6
TERA = 1e12
GIGA = 1e9


class LatencyMode(StrEnum):
    """Which of the two readings of an H100; results name theirs."""

    KERNEL = "kernel"
    """Kernels as measured, and a lean host."""
    VLLM_TESTBED = "vllm_testbed"
    """Calibrated on the three capacities that the paper's testbed reached."""


class Operator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields are those of the file; an operator uses the ones that its form has."""

    t0_us: float
    flops_tera_per_s: float = msgspec.field(default=1.0, name="F_TFLOPS")
    bytes_tera_per_s: float = msgspec.field(default=0.0, name="B_TBps")
    bytes_giga_per_s: float = msgspec.field(default=0.0, name="B_GBps")
    power: float = msgspec.field(default=1.0, name="p")
    longest_block_ratio: float = msgspec.field(default=1.0, name="crit_ratio")
    us_per_sequence_kv_head: float = msgspec.field(default=0.0, name="c_seq_kvhead_us")
    us_per_sqrt_kib: float = msgspec.field(default=0.0, name="a_us_per_sqrtKiB")
    us_per_value_head: float = msgspec.field(default=0.0, name="c_vhead_us")
    us_per_token: float = msgspec.field(default=0.0, name="c_tok_us")
    us_per_expert: float = msgspec.field(default=0.0, name="g_us_per_expert")
    tokens_lost_per_expert: float = msgspec.field(default=0.0, name="c_tok")

    @property
    def t0_s(self) -> float:
        return self.t0_us * MICROSECOND_S

    @property
    def bytes_per_s(self) -> float:
        return self.bytes_tera_per_s * TERA + self.bytes_giga_per_s * GIGA


class FitError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of one operator against the measured table it was fitted to."""

    points: int = msgspec.field(name="n")
    mean_pct: float = msgspec.field(name="MAPE_pct")
    p95_pct: float


class Assumed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    note: str
    kernels: int = msgspec.field(name="ew_kernels")
    t0_us: float = msgspec.field(name="ew_t0_us")
    bytes_tera_per_s: float = msgspec.field(name="ew_B_TBps")


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    compute_share: float
    """Of the fitted FLOP/s of GEMMs, experts and prefill attention."""
    host_us: float
    host_us_per_sequence: float
    note: str


class Memory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    usable_bytes_per_gpu: int
    note: str


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    error: Mapping[str, FitError]
    operators: Mapping[str, Operator]
    assumed: Assumed
    modes: Mapping[LatencyMode, Calibration]
    memory: Memory

    def operator(self, name: str) -> Operator:
        if name not in self.operators:
            raise ValueError(
                f"no coefficients of operator {name!r}; there are {sorted(self.operators)}"
            )
        return self.operators[name]


class LinearAttention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int

    @property
    def in_width(self) -> int:
        """Query, key, value and output gate in one matrix."""
        return 2 * self.k_heads * self.k_dim + 2 * self.v_heads * self.v_dim

    @property
    def out_width(self) -> int:
        return self.v_heads * self.v_dim


class Architecture(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes of a model as its config.json has them; `tensor_parallel` is the paper's."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    gated_mlp: bool
    vocab: int
    experts: int
    experts_per_token: int
    shared_expert_intermediate: int
    expert_operator: str | None
    expert_bytes_per_weight: float
    attention_output_gate: bool
    sliding_window_tokens: int | None
    sliding_window_layers: int
    linear_attention_layers: int
    linear_attention: LinearAttention | None
    weight_bytes: int
    total_params_billion: float
    active_params_billion: float
    tensor_parallel: int
    max_context_tokens: int
    source: str
    note: str

    @property
    def attention_layers(self) -> int:
        """Those that keep KV of every token; layers with a window are counted among them."""
        return self.layers - self.linear_attention_layers

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * 2 * self.kv_heads * self.head_dim * self.attention_layers


class _Models(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    models: Mapping[str, Architecture]


@cache
def h100() -> Hardware:
    return msgspec.json.decode(_data("h100.json"), type=Hardware)


@cache
def architectures() -> Mapping[str, Architecture]:
    return msgspec.json.decode(_data("models.json"), type=_Models).models


def architecture(model: str) -> Architecture:
    known = architectures()
    if model not in known:
        raise ValueError(f"model {model!r} has no architecture here; known are {sorted(known)}")
    return known[model]


def _data(name: str) -> bytes:
    return resources.files("bench.sim").joinpath("data", name).read_bytes()
