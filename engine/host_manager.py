"""What vLLM's offloading scheduler asks of the host tier: translated to policy.host_tier.

A request's class is known by its id (`shadows`): vLLM's context of a request has none.

Host: engine.host_tier."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingManager,
    PrepareStoreOutput,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from policy.vocabulary import RequestClass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from vllm.v1.kv_offload.base import OffloadKey, ReqContext

    from policy.host_tier import HostTier


@dataclass(slots=True)
class TierCounts:
    """Blocks, since the start."""

    stored: int = 0
    loaded: int = 0
    refused: int = 0
    """For want of a slot: nothing there could be evicted for them."""


@dataclass(slots=True)
class _Prefix:
    """The keys of one request, from the head on, as far as they were offered."""

    keys: dict[Any, None] = field(default_factory=dict)


class HostTierManager(OffloadingManager):
    """One per engine, in the scheduler's process."""

    def __init__(
        self, tier: HostTier[Any], block_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`block_bytes`: of one worker."""
        self.tier = tier
        self.block_bytes = block_bytes
        self.counts = TierCounts()
        self.shadows: set[str] = set()
        """Ids of unfinished shadow requests; engine.host_tier adds them."""
        self._clock = clock

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        req_context.set_state(_Prefix())
        return RequestOffloadingContext()

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        # What is still being written counts as missing: a call waits for no store.
        return LookupResult.HIT if self.tier.can_read(key) else LookupResult.MISS

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        return CacheHitSource.HOST

    def prepare_load(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> CPULoadStoreSpec:
        ordered = list(keys)
        slots = self.tier.pin(ordered)
        self.tier.used(ordered, self._class_of(req_context), self._clock())
        self.counts.loaded += len(slots)
        return CPULoadStoreSpec(slots)

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self.tier.unpin(list(keys))

    def prepare_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext
    ) -> PrepareStoreOutput:
        prefix, now_s = self._prefix_of(req_context), self._clock()
        prefix.keys.update(dict.fromkeys(keys))
        taker = self._class_of(req_context)
        slots, evicted, refused = self.tier.store(list(keys), taker, now_s, own=prefix.keys)
        self.counts.stored += len(slots)
        self.counts.refused += refused
        return PrepareStoreOutput(
            keys_to_store=list(slots),
            store_spec=CPULoadStoreSpec(list(slots.values())),
            evicted_keys=evicted,
        )

    def complete_store(
        self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True
    ) -> None:
        if success:
            self.tier.arrived(list(keys))
        else:
            self.tier.lost(list(keys))

    def on_request_finished(self, req_context: ReqContext) -> None:
        # Also what it found in the pool and never needed from here: the session is alive.
        keys = list(self._prefix_of(req_context).keys)
        self.tier.used(keys, self._class_of(req_context), self._clock())
        self.shadows.discard(req_context.req_id)

    def reset_cache(self) -> None:
        self.tier.clear()

    def _class_of(self, req_context: ReqContext) -> RequestClass:
        is_shadow = req_context.req_id in self.shadows
        return RequestClass.SHADOW if is_shadow else RequestClass.NORMAL

    def _prefix_of(self, req_context: ReqContext) -> _Prefix:
        prefix = req_context.get_state(_Prefix)
        assert prefix is not None, req_context.req_id
        return prefix
