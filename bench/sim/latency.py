"""How long one iteration of one instance takes on H100s, for the models of the paper.

iteration = layers x (GEMMs + experts + element-wise + all-reduces) + attention of each prefill
chunk + attention of the decodes + head + host. Two modes (`LatencyMode`); everything that depends
on the number of tokens alone is tabulated, so that the simulator looks it up.

Pure but for reading the two data files. Hosts: bench.sim."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from bench.sim import operators
from bench.sim.hardware import MICROSECOND_S, TERA, LatencyMode, architecture, h100
from bench.sim.layers import layer_times

if TYPE_CHECKING:
    from bench.sim.hardware import Hardware
    from bench.sim.layers import LayerTimes

MAX_ITERATION_TOKENS = 65_536
"""Longest iteration that is answered: the fit saw 8,448 tokens, a typing error has millions."""
MAX_CONTEXT_TOKENS = 2_097_152
MIN_TTFT_SLO_S = 1.0
MIN_TPOT_SLO_S = 0.025
SLO_FACTOR = 5
"""SLOs of the paper: five times what an idle instance needs, but not below these two."""
SLO_CONTEXT_TOKENS = 1024
"""Context of the batch-1 decode that the TPOT SLO starts from."""
PREFILL_CHUNK_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prefill of `new_tokens` of one request that holds `context_tokens` already."""

    new_tokens: int
    context_tokens: int

    def __post_init__(self) -> None:
        if not 1 <= self.new_tokens <= MAX_ITERATION_TOKENS:
            raise ValueError(
                f"chunk.new_tokens must be 1 to {MAX_ITERATION_TOKENS}, got {self.new_tokens}"
            )
        if not 0 <= self.context_tokens <= MAX_CONTEXT_TOKENS:
            raise ValueError(
                f"chunk.context_tokens must be 0 to {MAX_CONTEXT_TOKENS}, got {self.context_tokens}"
            )


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration: the context of each decode, and the chunks."""

    decode_contexts: tuple[int, ...] = ()
    chunks: tuple[Chunk, ...] = ()

    def __post_init__(self) -> None:
        if not self.decode_contexts and not self.chunks:
            raise ValueError("an iteration without decodes and chunks does not run")
        wrong = [c for c in self.decode_contexts if not 1 <= c <= MAX_CONTEXT_TOKENS]
        if wrong:
            raise ValueError(
                f"decode context must be 1 to {MAX_CONTEXT_TOKENS} tokens, got {wrong[0]}"
            )
        if self.tokens > MAX_ITERATION_TOKENS:
            raise ValueError(
                f"an iteration has at most {MAX_ITERATION_TOKENS} tokens, got {self.tokens}"
            )

    @property
    def tokens(self) -> int:
        return len(self.decode_contexts) + sum(chunk.new_tokens for chunk in self.chunks)

    @property
    def sequences(self) -> int:
        return len(self.decode_contexts) + len(self.chunks)


@dataclass(frozen=True, slots=True)
class DecodeTerms:
    """Attention of all decodes, added up over the layers; a window bounds what a layer reads."""

    fixed_s: float
    s_per_sequence: float
    s_per_context_token: float
    s_per_window_token: float
    window_tokens: int


class LatencyModel:
    """One model on `tensor_parallel` H100s."""

    def __init__(
        self,
        model: str,
        mode: LatencyMode = LatencyMode.KERNEL,
        *,
        tensor_parallel: int | None = None,
        hardware: Hardware | None = None,
        slo_scale: float = 1.0,
    ) -> None:
        if not slo_scale > 0:
            raise ValueError(f"slo_scale must be > 0, got {slo_scale}")
        self.slo_scale = slo_scale
        self.model = model
        self.mode = LatencyMode(mode)
        self.architecture = architecture(model)
        self.hardware = hardware or h100()
        self.tensor_parallel = tensor_parallel or self.architecture.tensor_parallel
        calibration = self.hardware.modes[self.mode]
        self.host_fixed_s = calibration.host_us * MICROSECOND_S
        self.host_s_per_sequence = calibration.host_us_per_sequence * MICROSECOND_S
        self._layers: LayerTimes = layer_times(
            self.architecture, self.hardware, self.tensor_parallel, calibration.compute_share
        )
        self.decode = self._decode_terms()

    def linear_s(self, tokens: float) -> float:
        """All that depends on the tokens of the iteration alone."""
        return self._layers.linear_s(tokens)

    def linear_table_s(self, max_tokens: int) -> np.ndarray:
        """`linear_s` of 0 to `max_tokens`; an iteration of no token takes no time."""
        table = np.zeros(max_tokens + 1)
        # Functions of numbers: numpy evaluates the same ones on an array.
        table[1:] = self._layers.linear_s(np.arange(1.0, max_tokens + 1))  # type: ignore[arg-type]
        return table

    def head_s(self, sequences: int) -> float:
        """vLLM computes logits of the last token of every sequence, those of a chunk that does not
        end its prompt too."""
        return self._layers.head_s(sequences) if sequences > 0 else 0.0

    def prefill_attention_s(self, new_tokens: int, context_tokens: int) -> float:
        """Of one chunk, all layers."""
        return self._layers.prefill_attention_s(new_tokens, context_tokens)

    def decode_attention_s(self, sequences: int, context: int, window: int) -> float:
        """Of all decodes; `window` is the sum of their contexts, each cut at the window."""
        if sequences == 0:
            return 0.0
        terms = self.decode
        read_s = terms.s_per_context_token * context + terms.s_per_window_token * window
        return terms.fixed_s + terms.s_per_sequence * sequences + read_s

    def iteration_s(self, iteration: Iteration) -> float:
        contexts = iteration.decode_contexts
        window = sum(min(context, self.decode.window_tokens) for context in contexts)
        duration_s = (
            self.linear_s(iteration.tokens)
            + self.decode_attention_s(len(contexts), sum(contexts), window)
            + sum(
                self.prefill_attention_s(c.new_tokens, c.context_tokens) for c in iteration.chunks
            )
            + self.head_s(iteration.sequences)
            + self.host_fixed_s
            + self.host_s_per_sequence * iteration.sequences
        )
        assert isfinite(duration_s), (self.model, iteration)
        assert duration_s > 0, (self.model, iteration)
        return duration_s

    def prefill_s(
        self, prompt_tokens: int, cached_tokens: int = 0, chunk_tokens: int = PREFILL_CHUNK_TOKENS
    ) -> float:
        """Of one prompt on an idle instance."""
        if not 0 <= cached_tokens < prompt_tokens:
            raise ValueError(
                f"a prefill computes at least one token: {cached_tokens} of {prompt_tokens} cached"
            )
        total_s = 0.0
        for start in range(cached_tokens, prompt_tokens, chunk_tokens):
            chunk = Chunk(min(chunk_tokens, prompt_tokens - start), start)
            total_s += self.iteration_s(Iteration(chunks=(chunk,)))
        return total_s

    def batch1_decode_s(self, context_tokens: int = SLO_CONTEXT_TOKENS) -> float:
        return self.iteration_s(Iteration(decode_contexts=(context_tokens,)))

    def ttft_slo_s(self, prompt_tokens: int) -> float:
        return self.slo_scale * max(MIN_TTFT_SLO_S, SLO_FACTOR * self.prefill_s(prompt_tokens))

    def tpot_slo_s(self) -> float:
        return self.slo_scale * max(MIN_TPOT_SLO_S, SLO_FACTOR * self.batch1_decode_s())

    @property
    def kv_bytes_per_token(self) -> int:
        """Of the whole instance, each head once: what a transfer moves."""
        return self.architecture.kv_bytes_per_token

    @property
    def kv_pool_tokens(self) -> int:
        """Tokens that fit beside the weights. A KV head cannot be cut, so fewer heads than GPUs
        means copies of them."""
        usable_bytes = self.hardware.memory.usable_bytes_per_gpu * self.tensor_parallel
        free_bytes = usable_bytes - self.architecture.weight_bytes
        copies = max(1.0, self.tensor_parallel / self.architecture.kv_heads)
        tokens = int(free_bytes / (copies * self.kv_bytes_per_token))
        if tokens < 1:
            raise ValueError(
                f"{self.model} does not fit on {self.tensor_parallel} GPUs: "
                f"{self.architecture.weight_bytes / 1e9:.1f} of {usable_bytes / 1e9:.1f} GB usable"
            )
        return tokens

    def kv_transfer_s(self, tokens: int, bytes_per_s_per_gpu: float) -> float:
        """All GPUs of an instance send at the same time."""
        if not bytes_per_s_per_gpu > 0:
            raise ValueError(f"bytes_per_s_per_gpu must be > 0, got {bytes_per_s_per_gpu}")
        return operators.transfer_s(
            tokens, self.kv_bytes_per_token, bytes_per_s_per_gpu * self.tensor_parallel
        )

    def _decode_terms(self) -> DecodeTerms:
        """The attention of the layers is linear, so its coefficients are differences of it."""
        at = self._layers.decode_attention_s
        fixed_s = at(0, 0, 0)
        return DecodeTerms(
            fixed_s=fixed_s,
            s_per_sequence=at(1, 0, 0) - fixed_s,
            s_per_context_token=(at(0, TERA, 0) - fixed_s) / TERA,
            s_per_window_token=(at(0, 0, TERA) - fixed_s) / TERA,
            window_tokens=self.architecture.sliding_window_tokens or 0,
        )
