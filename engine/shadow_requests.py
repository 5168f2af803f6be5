"""A shadow request inside the engine: vLLM's own request, where it is, and how far one step may go.

Hosts: engine.intake, engine.planning, engine.connector."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.request import Request, RequestStatus

from policy.kv_class import NO_HIT, PrefixHit
from policy.vocabulary import RequestClass

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.kv_pool import TwoClassPool
    from engine.marks import Marks

NEVER_S = float("-inf")
LAST_PRIORITY = 2**31 - 1
"""vLLM's priority policy preempts the largest value: a shadow before anything else."""


class ShadowEnd(StrEnum):
    """Why we ended a shadow request; the client sees it as `stop_reason`."""

    OFF = "shadow_off"
    REFUSED = "refused"
    SUPERSEDED = "superseded"
    RELEASED = "released_by_routed_call"
    TIMED_OUT = "timed_out"
    STALLED = "stalled"
    DROPPED = "dropped"
    PAUSED = "paused"
    TRUNCATED_BY_CAP = "truncated_by_cap"
    NO_HANDOFF = "no_handoff"
    PULL_FAILED = "pull_failed"
    PULL_TIMED_OUT = "pull_timed_out"
    PUSH_TOO_LONG = "push_too_long"
    QUARANTINED = "quarantined"


class CappedRequest(Request):
    """A request whose end, for one step, is `step_limit_tokens`.

    vLLM's loop gives a request whatever it misses, up to the whole step budget. Lowering that
    budget would be no cap: tokens that a normal request leaves unused would go to the shadow.
    An existing request becomes one by assignment of its class."""

    step_tokens: int | None = None
    """Its grant while it is admitted: the end follows when the cached prefix is known, because
    requests before it in the same step may still evict some of that."""
    step_limit_tokens: int | None = None
    may_load: bool = False
    """Whether its admission may load what the host tier holds of it: of the whole of that, since
    vLLM loads no part (engine.restore)."""
    before_turn: Callable[[], None] | None = None
    """Called when vLLM's loop over what runs comes to it: before each allocation that loop asks for
    this end, and for nobody else's."""

    @property
    def num_tokens(self) -> int:
        return self._capped(len(self._all_token_ids))

    @property
    def num_tokens_with_spec(self) -> int:
        if self.before_turn is not None:
            self.before_turn()
        return self._capped(len(self._all_token_ids) + len(self.spec_token_ids))

    def prefix_found(self, hit_tokens: int) -> None:
        if self.step_tokens is not None:
            self.step_limit_tokens = hit_tokens + self.step_tokens

    def uncap(self) -> None:
        self.step_tokens = self.step_limit_tokens = self.before_turn = None
        self.may_load = False

    def _capped(self, tokens: int) -> int:
        return tokens if self.step_limit_tokens is None else min(tokens, self.step_limit_tokens)


class ShadowKVCacheManager(KVCacheManager):
    """Tells the pool who takes, and gives normal traffic the blocks of hidden shadows before vLLM
    preempts any of it.

    An existing manager becomes one by assignment of its class; references to it stay valid."""

    block_pool: TwoClassPool
    reclaim: Callable[[Request], bool]
    """Frees the blocks of one shadow; False if that request has no claim or nothing is left."""

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> KVCacheBlocks | None:
        is_shadow = isinstance(request, CappedRequest)
        prefix = new_computed_blocks.blocks if new_computed_blocks is not None else ()
        self.block_pool.begin(RequestClass.SHADOW if is_shadow else RequestClass.NORMAL, prefix)
        try:
            while True:
                blocks: KVCacheBlocks | None = super().allocate_slots(
                    request,
                    num_new_tokens,
                    num_new_computed_tokens,
                    new_computed_blocks,
                    *args,
                    **kwargs,
                )
                if blocks is not None or not self.reclaim(request):
                    return blocks
        finally:
            self.block_pool.end()

    def get_computed_blocks(
        self, request: Request, *args: Any, **kwargs: Any
    ) -> tuple[KVCacheBlocks, int, int]:
        # vLLM 0.33 passes a limit as well.
        found: tuple[KVCacheBlocks, int, int] = super().get_computed_blocks(
            request, *args, **kwargs
        )
        if isinstance(request, CappedRequest):
            request.prefix_found(found[1])
        return found


@dataclass(slots=True)
class ShadowRequest:
    """One unfinished shadow request. It is in vLLM's queues only while `visible`."""

    request: CappedRequest
    marks: Marks
    arrival_s: float
    hit_tokens: int = 0
    """Of its prefix in the cache, at its last look-up while it had not started."""
    hit: PrefixHit = NO_HIT
    """The blocks of that prefix."""
    looked_up_s: float = NEVER_S
    visible: bool = False
    asked_tier: bool = False

    @property
    def loading(self) -> bool:
        return self.request.status == RequestStatus.WAITING_FOR_REMOTE_KVS

    @property
    def started(self) -> bool:
        """Holds blocks of the KV pool."""
        return self.request.status == RequestStatus.RUNNING

    @property
    def missing_tokens(self) -> int:
        done = self.request.num_computed_tokens if self.started else self.hit_tokens
        return self.request.num_tokens - done


@dataclass(slots=True)
class ShadowStats:
    """Counters for tests and the debug log."""

    arrived: int = 0
    finished: int = 0
    tokens: int = 0
    steps: int = 0
    drops: int = 0
    pulled: int = 0
    pulls_timed_out: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    grants: dict[str, int] = field(default_factory=dict)

    def count_end(self, end: ShadowEnd) -> None:
        self.ended[end.value] = self.ended.get(end.value, 0) + 1

    def count_grant(self, reason: str) -> None:
        self.grants[reason] = self.grants.get(reason, 0) + 1
