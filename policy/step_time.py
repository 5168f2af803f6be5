"""How long an engine iteration takes, and how many tokens still fit into a budget.

The form is linear: a fixed part, a part per request, per new token, per (new token x token it
attends to), and per token of context whose KV is read. It starts from a hardware profile and is
corrected by the iterations that really ran.

The context terms are the trap. A least-squares fit of all coefficients is wild in them until long
contexts were seen, so nothing is fitted freely: three factors scale the start coefficients, one for
the terms without context, one for the pairs (which long prefills are made of), one for the reads
(which decodes at long contexts are made of), and each moves only on iterations in which its part is
the largest. So a budget never grows by samples that never occurred: decodes say nothing about
prefill at the same context. A factor rises at once when an iteration was slower than predicted and
falls slowly, so that a wrong model shrinks the budget.

Pure. Hosts: engine.timing (with `observe`), bench.sim (without: its model is exact)."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

MAX_RISE = 4.0
"""Most that one iteration raises a factor: a pause of the machine must not end shadow work."""
FALL_SHARE = 0.05
"""Share of the way down that one faster iteration takes a factor."""
RECOVERY_HALF_LIFE_S = 0.5
"""How fast a raised factor goes back to 1 while nothing runs that could correct it."""
MIN_FACTOR = 0.25
MAX_FACTOR = 64.0
TRUST_GROWTH = 2
"""The shadow tokens of an iteration may be this many times the largest iteration seen so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeCoefficients:
    """Start values, from `step_time` of a model or of the hardware profile."""

    fixed_s: float
    s_per_request: float
    s_per_token: float
    s_per_token_context: float
    """Per (new token x token it attends to): the arithmetic of attention."""
    s_per_context_token: float = 0.0
    """Per token of context, once per request and iteration: reading its KV."""

    def __post_init__(self) -> None:
        for name in ("fixed_s", "s_per_token"):
            if not getattr(self, name) > 0:
                raise ValueError(f"step_time.{name} must be > 0, got {getattr(self, name)}")
        for name in ("s_per_request", "s_per_token_context", "s_per_context_token"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"step_time.{name} must be >= 0, got {getattr(self, name)}")


def attended(new_tokens: int, context_tokens: int) -> float:
    """Token pairs of one request: each new token attends to the context and to those before it."""
    return new_tokens * (context_tokens + (new_tokens + 1) / 2)


class Batch(NamedTuple):
    """What an iteration carries, in the units of the latency form."""

    requests: int = 0
    tokens: int = 0
    pairs: float = 0.0
    """Sum of `attended` over the requests."""
    context_tokens: int = 0
    """Sum over the requests of what they had computed before."""

    def plus(self, new_tokens: int, context_tokens: int) -> Batch:
        """With one more request."""
        return Batch(
            self.requests + 1,
            self.tokens + new_tokens,
            self.pairs + attended(new_tokens, context_tokens),
            self.context_tokens + context_tokens,
        )

    def joined(self, other: Batch) -> Batch:
        """Both together."""
        return Batch(
            self.requests + other.requests,
            self.tokens + other.tokens,
            self.pairs + other.pairs,
            self.context_tokens + other.context_tokens,
        )


NO_BATCH = Batch()


def largest_chunk(rest_s: float, s_per_token: float, s_per_pair: float, context_tokens: int) -> int:
    """Most tokens n with s_per_token * n + s_per_pair * attended(n, context) <= rest_s.

    The root is written without a difference of near-equal numbers, so it holds for s_per_pair = 0;
    it may be one off by rounding, which the caller checks against the prediction that it uses."""
    if rest_s <= 0:
        return 0
    linear = s_per_token + s_per_pair * (context_tokens + 0.5)
    return int(2 * rest_s / (linear + sqrt(linear * linear + 2 * s_per_pair * rest_s)))


class StepTimeModel:
    """The latency form of one instance. `trusted_tokens` is the most that an iteration should be
    stretched by, at first by as much as an instance that has seen nothing begins with; None means
    that the coefficients are exact and no caution is needed."""

    __slots__ = (
        "_coefficients",
        "base_factor",
        "context_factor",
        "read_factor",
        "trusted_tokens",
    )

    def __init__(
        self, coefficients: StepTimeCoefficients, *, trusted_tokens: int | None = None
    ) -> None:
        if trusted_tokens is not None and trusted_tokens < 1:
            raise ValueError(f"trusted_tokens must be >= 1 or None, got {trusted_tokens}")
        self._coefficients = coefficients
        self.base_factor = 1.0
        self.context_factor = 1.0
        self.read_factor = 1.0
        self.trusted_tokens = trusted_tokens

    def predicted_s(self, batch: Batch) -> float:
        """Duration of an iteration. One of no request does not run and takes no time."""
        if batch.requests == 0:
            return 0.0
        return self._scaled_s(1, batch)

    def prefill_s(self, tokens: int, context_tokens: int, chunk_tokens: int) -> float:
        """Duration of the iterations that one request's prefill takes alone, chunk after chunk."""
        if tokens <= 0:
            return 0.0
        chunks = -(-tokens // chunk_tokens)
        reads = chunks * context_tokens + chunk_tokens * (chunks * (chunks - 1) // 2)
        return self._scaled_s(
            chunks, Batch(chunks, tokens, attended(tokens, context_tokens), reads)
        )

    def max_tokens_within(
        self, budget_s: float, batch: Batch, chunk_context_tokens: int, limit_tokens: int
    ) -> int:
        """Most tokens of one more request that keep the predicted time within the budget."""
        start = self._coefficients
        chunk = largest_chunk(
            budget_s - self._scaled_s(1, batch.plus(0, chunk_context_tokens)),
            self.base_factor * start.s_per_token,
            self.context_factor * start.s_per_token_context,
            chunk_context_tokens,
        )
        chunk = max(0, min(chunk, limit_tokens))
        while chunk > 0 and budget_s < self._scaled_s(1, batch.plus(chunk, chunk_context_tokens)):
            chunk -= 1
        return chunk

    def worthwhile_tokens(self, context_tokens: int, overhead_share: float, *, alone: bool) -> int:
        """Smallest chunk of which at most `overhead_share` of the time goes into what every chunk
        costs again: one more request and the reading of its context, and of an iteration that runs
        for the chunk alone the fixed part too."""
        start = self._coefficients
        fixed_s = start.s_per_request + (start.fixed_s if alone else 0.0)
        again_s = self.base_factor * fixed_s + (
            self.read_factor * start.s_per_context_token * context_tokens
        )
        return 1 + largest_chunk(
            again_s * (1 - overhead_share) / overhead_share,
            self.base_factor * start.s_per_token,
            self.context_factor * start.s_per_token_context,
            context_tokens,
        )

    def observe(self, step_s: float, batch: Batch) -> None:
        """One iteration that really ran, shadow tokens included."""
        if batch.requests == 0 or step_s <= 0:
            return
        base_s, pairs_s, reads_s = self._parts_s(1, batch)
        now_base_s = self.base_factor * base_s
        now_pairs_s = self.context_factor * pairs_s
        now_reads_s = self.read_factor * reads_s
        seen_share = step_s / (now_base_s + now_pairs_s + now_reads_s)
        # A slow iteration is blamed on the largest part alone, a fast one is credited to the
        # whole: a base term that is too large must not talk a context term down.
        if now_pairs_s > max(now_base_s, now_reads_s):
            blamed = (step_s - now_base_s - now_reads_s) / pairs_s
            self.context_factor = _moved(self.context_factor, seen_share, blamed)
        elif now_reads_s > now_base_s:
            blamed = (step_s - now_base_s - now_pairs_s) / reads_s
            self.read_factor = _moved(self.read_factor, seen_share, blamed)
        else:
            blamed = (step_s - now_pairs_s - now_reads_s) / base_s
            self.base_factor = _moved(self.base_factor, seen_share, blamed)
        if self.trusted_tokens is not None:
            self.trusted_tokens = max(self.trusted_tokens, TRUST_GROWTH * batch.tokens)

    def trust(self, tokens: int) -> None:
        """At least so many, as if an iteration had shown it; never fewer than before."""
        if self.trusted_tokens is not None:
            self.trusted_tokens = max(self.trusted_tokens, tokens)

    def forget(self, waited_s: float) -> None:
        """An idle instance that may not run even the smallest chunk sees no iteration any more, and
        an outlier would hold it for ever. So raised factors go back towards the start values with
        time, never below them: nothing grows from iterations that never ran."""
        kept = 0.5 ** (waited_s / RECOVERY_HALF_LIFE_S)
        self.base_factor = _sunk(self.base_factor, kept)
        self.context_factor = _sunk(self.context_factor, kept)
        self.read_factor = _sunk(self.read_factor, kept)

    def _scaled_s(self, iterations: int, batch: Batch) -> float:
        base_s, pairs_s, reads_s = self._parts_s(iterations, batch)
        return (
            self.base_factor * base_s + self.context_factor * pairs_s + self.read_factor * reads_s
        )

    def _parts_s(self, iterations: int, batch: Batch) -> tuple[float, float, float]:
        start = self._coefficients
        requests, tokens, pairs, context_tokens = batch
        return (
            start.fixed_s * iterations
            + start.s_per_request * requests
            + start.s_per_token * tokens,
            start.s_per_token_context * pairs,
            start.s_per_context_token * context_tokens,
        )


def _moved(factor: float, seen_share: float, blamed: float) -> float:
    if seen_share > 1:
        return min(blamed, factor * MAX_RISE, MAX_FACTOR)
    return max(factor * (1 - FALL_SHARE * (1 - seen_share)), MIN_FACTOR)


def _sunk(factor: float, kept: float) -> float:
    return min(factor, 1 + max(0.0, factor - 1) * kept)
