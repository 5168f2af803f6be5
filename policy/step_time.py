"""How long an engine iteration takes, and how many tokens still fit into a budget.

The form is linear: a fixed part, a part per request, per new token, and per (new token x token it
attends to). It starts from a hardware profile and is corrected by the iterations that really ran.

The context term is the trap. A least-squares fit of all four coefficients is wild in it until long
contexts were seen, so nothing is fitted freely: two factors scale the start coefficients, one for
the terms without context, one for the context term, and each moves only on iterations that it
dominates. Both rise at once when an iteration was slower than predicted and fall slowly, so that a
wrong model shrinks the budget.

Pure. Hosts: engine.scheduler (with `observe`), bench.sim (without: its model is exact)."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

MAX_RISE = 4.0
"""Most that one iteration raises a factor: a pause of the machine must not end shadow work."""
FALL_SHARE = 0.05
"""Share of the way down that one faster iteration takes a factor."""
RECOVERY_HALF_LIFE_S = 0.5
"""How fast a raised factor goes back to 1 while nothing runs that could correct it."""
MIN_FACTOR = 0.25
MAX_FACTOR = 64.0
TRUST_GROWTH = 2
"""A chunk may be this many times the largest iteration seen so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeCoefficients:
    """Start values, from `step_time` of a model or of the hardware profile."""

    fixed_s: float
    s_per_request: float
    s_per_token: float
    s_per_token_context: float

    def __post_init__(self) -> None:
        for name in ("fixed_s", "s_per_token"):
            if not getattr(self, name) > 0:
                raise ValueError(f"step_time.{name} must be > 0, got {getattr(self, name)}")
        for name in ("s_per_request", "s_per_token_context"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"step_time.{name} must be >= 0, got {getattr(self, name)}")


def attended(new_tokens: int, context_tokens: int) -> float:
    """Token pairs of one request: each new token attends to the context and to those before it."""
    return new_tokens * (context_tokens + (new_tokens + 1) / 2)


def largest_chunk(rest_s: float, s_per_token: float, s_per_pair: float, context_tokens: int) -> int:
    """Most tokens n with s_per_token * n + s_per_pair * attended(n, context) <= rest_s.

    The root is written without a difference of near-equal numbers, so it holds for s_per_pair = 0;
    it may be one off by rounding, which the caller checks against the prediction that it uses."""
    if rest_s <= 0:
        return 0
    linear = s_per_token + s_per_pair * (context_tokens + 0.5)
    return int(2 * rest_s / (linear + sqrt(linear * linear + 2 * s_per_pair * rest_s)))


class StepTimeModel:
    """The latency form of one instance. `trusted_tokens` is where an instance that has seen nothing
    begins (its n_min); None means that the coefficients are exact and no caution is needed."""

    __slots__ = ("_coefficients", "base_factor", "context_factor", "trusted_tokens")

    def __init__(
        self, coefficients: StepTimeCoefficients, *, trusted_tokens: int | None = None
    ) -> None:
        if trusted_tokens is not None and trusted_tokens < 1:
            raise ValueError(f"trusted_tokens must be >= 1 or None, got {trusted_tokens}")
        self._coefficients = coefficients
        self.base_factor = 1.0
        self.context_factor = 1.0
        self.trusted_tokens = trusted_tokens

    def predicted_s(self, requests: int, tokens: int, context_token_product: float) -> float:
        """Duration of an iteration; `context_token_product` is the sum of `attended` over requests.
        An iteration of no request does not run and takes no time."""
        if requests == 0:
            return 0.0
        base_s, context_s = self._parts(requests, tokens, context_token_product)
        return self.base_factor * base_s + self.context_factor * context_s

    def max_tokens_within(
        self,
        budget_s: float,
        requests: int,
        tokens: int,
        context_token_product: float,
        chunk_context_tokens: int,
        limit_tokens: int,
    ) -> int:
        """Most tokens of one more request that keep the predicted time within the budget."""
        start = self._coefficients
        before_s = self.predicted_s(requests + 1, tokens, context_token_product)
        chunk = largest_chunk(
            budget_s - before_s,
            self.base_factor * start.s_per_token,
            self.context_factor * start.s_per_token_context,
            chunk_context_tokens,
        )
        limit = (
            limit_tokens if self.trusted_tokens is None else min(limit_tokens, self.trusted_tokens)
        )
        chunk = max(0, min(chunk, limit))
        while chunk > 0 and budget_s < self.predicted_s(
            requests + 1,
            tokens + chunk,
            context_token_product + attended(chunk, chunk_context_tokens),
        ):
            chunk -= 1
        return chunk

    def observe(
        self, step_s: float, requests: int, tokens: int, context_token_product: float
    ) -> None:
        """One iteration that really ran, shadow tokens included."""
        if requests == 0 or step_s <= 0:
            return
        base_s, context_s = self._parts(requests, tokens, context_token_product)
        scaled_base_s = self.base_factor * base_s
        scaled_context_s = self.context_factor * context_s
        seen_share = step_s / (scaled_base_s + scaled_context_s)
        # A slow iteration is blamed on the dominating part alone, a fast one is credited to the
        # whole: a base term that is too large must not talk the context term down.
        if scaled_context_s > scaled_base_s:
            blamed = (step_s - scaled_base_s) / context_s
            self.context_factor = _moved(self.context_factor, seen_share, blamed)
        else:
            blamed = (step_s - scaled_context_s) / base_s
            self.base_factor = _moved(self.base_factor, seen_share, blamed)
        if self.trusted_tokens is not None:
            self.trusted_tokens = max(self.trusted_tokens, TRUST_GROWTH * tokens)

    def trust(self, tokens: int) -> None:
        """At least so many, as if an iteration had shown it; never fewer than before."""
        if self.trusted_tokens is not None:
            self.trusted_tokens = max(self.trusted_tokens, tokens)

    def forget(self, waited_s: float) -> None:
        """An idle instance that may not run even the smallest chunk sees no iteration any more, and
        an outlier would hold it for ever. So raised factors go back towards the start values with
        time, never below them: nothing grows from iterations that never ran."""
        kept = 0.5 ** (waited_s / RECOVERY_HALF_LIFE_S)
        self.base_factor = min(self.base_factor, 1 + max(0.0, self.base_factor - 1) * kept)
        self.context_factor = min(self.context_factor, 1 + max(0.0, self.context_factor - 1) * kept)

    def _parts(self, requests: int, tokens: int, pairs: float) -> tuple[float, float]:
        start = self._coefficients
        base_s = start.fixed_s + start.s_per_request * requests + start.s_per_token * tokens
        return base_s, start.s_per_token_context * pairs


def _moved(factor: float, seen_share: float, blamed: float) -> float:
    if seen_share > 1:
        return min(blamed, factor * MAX_RISE, MAX_FACTOR)
    return max(factor * (1 - FALL_SHARE * (1 - seen_share)), MIN_FACTOR)
