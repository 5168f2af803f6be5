"""Which instance a call goes to.

Prefill: the instance with the lowest estimated prefill completion time, counting only the tokens
that it does not hold; a session's sticky instance keeps the call unless another one wins clearly,
because moving leaves its warm prefix behind. Decode: the sticky instance unless it is unhealthy or
full. A call for whose prompt the decode instance lacks so little that to ask a prefill instance and
to move KV would take longer is computed there.

Pure. Hosts: coordinator.node_state, bench.sim."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

MOVE_MARGIN_SHARE = 0.2
"""Another instance must be this much faster, as a share of the sticky one's time, to win the
call."""


class PlacementReason(StrEnum):
    """Why this instance; also the metric label."""

    FIRST = "first"
    """The session has no sticky instance yet."""
    STICKY = "sticky"
    MOVED_FASTER = "moved_faster"
    STICKY_UNHEALTHY = "sticky_unhealthy"
    STICKY_FULL = "sticky_full"
    NO_ROOM = "no_room"
    """Every healthy instance is full: the call will queue on the least busy one."""
    NONE_HEALTHY = "none_healthy"
    SKIPPED_SHORT = "skipped_short"
    """The prompt is so short that the decode instance computes it itself."""
    SKIPPED_HELD = "skipped_held"
    """The decode instance holds so much of the prompt that it computes the rest itself."""


class PrefillCandidate(NamedTuple):
    """A tuple, like the others here: every call makes some, and a frozen dataclass costs three
    times as much."""

    name: str
    healthy: bool
    queue_s: float
    """Predicted time until it has prefilled what it was given before."""
    uncached_tokens: int
    """Of this call's prompt, as far as we know what the instance holds."""
    s_per_token: float

    @property
    def completion_s(self) -> float:
        return prefill_completion_s(self.queue_s, self.uncached_tokens, self.s_per_token)


class DecodeCandidate(NamedTuple):
    name: str
    healthy: bool
    in_flight_requests: int
    free_tokens: int
    """Room for KV, shadow entries counted as free: they are reclaimed first."""


class Placed(NamedTuple):
    """`instance` is empty only with NONE_HEALTHY."""

    instance: str
    reason: PlacementReason


def prefill_completion_s(queue_s: float, uncached_tokens: float, s_per_token: float) -> float:
    return queue_s + uncached_tokens * s_per_token


def clearly_faster(best_s: float, current_s: float, margin_share: float) -> bool:
    """Whether it is worth leaving the warm prefix behind."""
    return best_s < (1 - margin_share) * current_s


def place_prefill(
    candidates: Sequence[PrefillCandidate],
    sticky: str | None,
    move_margin_share: float = MOVE_MARGIN_SHARE,
) -> Placed:
    """`sticky` names the session's last instance of the model; it may be gone from the
    candidates."""
    healthy = [candidate for candidate in candidates if candidate.healthy]
    if not healthy:
        return Placed("", PlacementReason.NONE_HEALTHY)
    # Ties go to the name, so that two coordinators with the same view agree.
    best = min(healthy, key=lambda candidate: (candidate.completion_s, candidate.name))
    if not sticky:
        return Placed(best.name, PlacementReason.FIRST)
    current = next((candidate for candidate in healthy if candidate.name == sticky), None)
    if current is None:
        return Placed(best.name, PlacementReason.STICKY_UNHEALTHY)
    if clearly_faster(best.completion_s, current.completion_s, move_margin_share):
        return Placed(best.name, PlacementReason.MOVED_FASTER)
    return Placed(current.name, PlacementReason.STICKY)


def skip_prefill(
    placed: Placed, decode: str, prompt_tokens: int, held_tokens: int, limit_tokens: int
) -> Placed:
    """`placed` for the prefill, or `decode` itself: it holds `held_tokens` of the session and may
    compute up to `limit_tokens`; 0: none, whatever it holds."""
    if placed.reason is PlacementReason.NONE_HEALTHY or limit_tokens == 0:
        return placed
    if prompt_tokens <= limit_tokens:
        return Placed(decode, PlacementReason.SKIPPED_SHORT)
    # A prompt shorter than what is held does not go on from there: it was compacted or edited.
    if 0 <= prompt_tokens - held_tokens <= limit_tokens:
        return Placed(decode, PlacementReason.SKIPPED_HELD)
    return placed


def place_decode(
    candidates: Sequence[DecodeCandidate], sticky: str | None, needed_tokens: int
) -> Placed:
    """`needed_tokens`: the prompt and the most that may be generated."""
    healthy = [candidate for candidate in candidates if candidate.healthy]
    if not healthy:
        return Placed("", PlacementReason.NONE_HEALTHY)
    roomy = [candidate for candidate in healthy if candidate.free_tokens >= needed_tokens]
    current = next((candidate for candidate in healthy if candidate.name == sticky), None)
    if current is not None and current in roomy:
        return Placed(current.name, PlacementReason.STICKY)
    best = min(
        roomy or healthy, key=lambda candidate: (candidate.in_flight_requests, candidate.name)
    )
    if not roomy:
        return Placed(best.name, PlacementReason.NO_ROOM)
    return Placed(best.name, _reason_not_sticky(sticky, current))


def _reason_not_sticky(sticky: str | None, current: DecodeCandidate | None) -> PlacementReason:
    if not sticky:
        return PlacementReason.FIRST
    return PlacementReason.STICKY_UNHEALTHY if current is None else PlacementReason.STICKY_FULL
