"""What the next call of a session would cost on a model now: its first token and its input's price.

A router that knows what a switch costs can decide whether a better model is worth it. How long the
instance is busy is told in coarse steps only: the exact queue is the uncached work of everybody,
so it would tell one tenant what another one had cached.

Pure. Host: coordinator.quotes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from policy.step_time import StepTimeModel

QUEUE_STEP_S = 0.05
"""The first step; each further one is twice as long."""
CHUNK_TOKENS = 2048
"""Prefill tokens per iteration, where nothing else is known."""
TOKENS_PER_PRICE = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPrice:
    """Of a million tokens."""

    uncached: float
    cached: float


class Quote(NamedTuple):
    prompt_tokens: int
    cached_tokens: int
    ttft_s: float
    price: float | None
    """None: the model has no price."""

    @property
    def uncached_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens


def coarse_queue_s(queue_s: float) -> float:
    """Rounded up to a step."""
    if queue_s <= 0:
        return 0.0
    step_s = QUEUE_STEP_S
    while step_s < queue_s:
        step_s *= 2
    return step_s


def quote(
    *,
    prompt_tokens: int,
    warm_tokens: int,
    queue_s: float,
    handoff_s: float,
    step_time: StepTimeModel,
    price: InputPrice | None,
) -> Quote:
    """`handoff_s`: from the hand-off to D's first token; 0 where one engine does both."""
    cached_tokens = min(warm_tokens, prompt_tokens)
    uncached_tokens = prompt_tokens - cached_tokens
    # A prompt that is cached to its end still computes its last token.
    computed_tokens = max(1, uncached_tokens)
    prefill_s = step_time.prefill_s(computed_tokens, cached_tokens, CHUNK_TOKENS)
    return Quote(
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        ttft_s=coarse_queue_s(queue_s) + prefill_s + handoff_s,
        price=None if price is None else _input_price(uncached_tokens, cached_tokens, price),
    )


def _input_price(uncached_tokens: int, cached_tokens: int, price: InputPrice) -> float:
    tokens_price = uncached_tokens * price.uncached + cached_tokens * price.cached
    return tokens_price / TOKENS_PER_PRICE
