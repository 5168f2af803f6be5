"""How many leading tokens of a session's next prompt an instance holds, by bookkeeping.

`own_tokens` is what it would hold without shadow work (its last call, or what a segment found
there), `shadow_tokens` what finished segments reach to. The engine's `cached_tokens` is the truth;
from it and this record follows how much of a prompt a shadow has saved. Estimates err towards the
shadow having saved less.

Pure. Hosts: coordinator.sessions, bench.sim."""

from __future__ import annotations

from dataclasses import dataclass, replace

from policy.segments import aligned


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPrefix:
    """Of one (session, model, instance)."""

    own_tokens: int = 0
    shadow_tokens: int = 0

    @property
    def tokens(self) -> int:
        return max(self.own_tokens, self.shadow_tokens)


def after_call(prompt_tokens: int, output_tokens: int, block_size: int) -> HeldPrefix:
    """A call promotes the shadow it hit: all of it is the session's own now. The last output token
    was sampled but never fed back, so no KV exists for it (a prefill leg generates just that
    one)."""
    fed_tokens = prompt_tokens + max(0, output_tokens - 1)
    return HeldPrefix(own_tokens=aligned(fed_tokens, block_size))


def after_segment(
    held: HeldPrefix, end_tokens: int, cached_tokens: int, block_size: int
) -> HeldPrefix:
    """A segment up to `end_tokens` is done, of which the engine had `cached_tokens` before. What it
    had beyond our record came from elsewhere (a system prompt that sessions share), not from a
    shadow."""
    found_tokens = cached_tokens if cached_tokens > held.tokens else 0
    return HeldPrefix(
        own_tokens=max(held.own_tokens, found_tokens),
        shadow_tokens=max(held.shadow_tokens, aligned(end_tokens, block_size)),
    )


def cut(held: HeldPrefix, common_tokens: int, block_size: int) -> HeldPrefix:
    """The history was rewritten behind `common_tokens`: what the instance holds beyond is of no
    use."""
    limit = aligned(common_tokens, block_size)
    return replace(
        held,
        own_tokens=min(held.own_tokens, limit),
        shadow_tokens=min(held.shadow_tokens, limit),
    )


def segment_computed_tokens(end_tokens: int, cached_tokens: int) -> int:
    """What one segment cost."""
    return max(0, end_tokens - cached_tokens)


def stopped_segment_tokens(held: HeldPrefix, stopped_tokens: int, cached_tokens: int) -> int:
    """What a segment up to `stopped_tokens` had computed when it was stopped. The engine tells only
    by what it has cached at the next look; `held` is the record of what had finished before."""
    return max(0, min(cached_tokens, stopped_tokens) - held.tokens)


def shadow_tokens_used(held: HeldPrefix, cached_tokens: int) -> int:
    """The part of a prompt's cached tokens that is there only because of the shadow; `held` is the
    record before the call."""
    return max(0, min(cached_tokens, held.shadow_tokens) - held.own_tokens)
