"""What is simulated: pools of instances, one pool per model, and the limits they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.sim.latency import Chunk, Iteration
from policy.placement import MOVE_MARGIN_SHARE

if TYPE_CHECKING:
    from bench.sim.latency import LatencyModel

MAX_INSTANCES = 64
PLACEMENT_CONTEXT_TOKENS = 4096
"""Where in a prompt placement looks up what a token costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPool:
    """The instances of one model: colocated ones, or prefill and decode apart."""

    latency: LatencyModel
    colocated: int = 0
    prefill: int = 0
    decode: int = 0

    def __post_init__(self) -> None:
        counts = (self.colocated, self.prefill, self.decode)
        if min(counts) < 0 or max(counts) > MAX_INSTANCES:
            raise ValueError(f"a pool has 0 to {MAX_INSTANCES} instances of a kind, got {counts}")
        apart = self.prefill > 0 and self.decode > 0
        if (self.colocated > 0) == apart or (self.prefill > 0) != (self.decode > 0):
            raise ValueError(
                f"pool of {self.latency.model}: colocated instances, or prefill and decode ones; "
                f"got colocated {self.colocated}, prefill {self.prefill}, decode {self.decode}"
            )

    @property
    def instances(self) -> int:
        return self.colocated + self.prefill + self.decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    pools: tuple[ModelPool, ...]
    max_batch_tokens: int = 2048
    max_sequences: int = 256
    block_tokens: int = 16
    link_bytes_per_s_per_gpu: float = 50e9
    move_margin_share: float = MOVE_MARGIN_SHARE
    keeps_finished: bool = True
    """The KV of a finished request of normal traffic stays cached until its place is needed, as in
    vLLM. Nobody hits it here: the question is whether it fills the pool."""

    def __post_init__(self) -> None:
        if not self.pools:
            raise ValueError("a cluster has at least one pool")
        if not 1 <= self.block_tokens <= 4096:
            raise ValueError(f"block_tokens must be 1 to 4096, got {self.block_tokens}")
        if not 1 <= self.max_sequences <= 4096:
            raise ValueError(f"max_sequences must be 1 to 4096, got {self.max_sequences}")
        if not self.max_sequences <= self.max_batch_tokens <= 65_536:
            raise ValueError(
                f"max_batch_tokens must be max_sequences ({self.max_sequences}) to 65536, "
                f"got {self.max_batch_tokens}"
            )
        if not self.link_bytes_per_s_per_gpu > 0:
            raise ValueError(
                f"link_bytes_per_s_per_gpu must be > 0, got {self.link_bytes_per_s_per_gpu}"
            )
        if not 0 <= self.move_margin_share < 1:
            raise ValueError(
                f"move_margin_share must be 0 to below 1, got {self.move_margin_share}"
            )

    def prefill_s_per_token(self, latency: LatencyModel) -> float:
        chunk = Chunk(self.max_batch_tokens, PLACEMENT_CONTEXT_TOKENS)
        return latency.iteration_s(Iteration(chunks=(chunk,))) / self.max_batch_tokens
