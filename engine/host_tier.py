"""The host tier of one engine: KV that was evicted from its pool comes back from host memory.

vLLM's offloading connector with our own tier behind it, on GPUs and on CPUs. Every full block is
copied into the tier soon after it was computed or pulled, generated tokens included, so that an
eviction needs no copy of its own. A call whose prefix goes on in the tier has that part copied back
before it is scheduled.

Rejected: vLLM's own tier of host memory, which knows one class of entries and no CPU platform.

engine.launch names these classes; vLLM builds a connector in the scheduler's process and one in
each worker's."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import OffloadingSpec, make_offload_key
from vllm.v1.kv_offload.cpu.gpu_worker import CPUOffloadingWorker
from vllm.v1.request import RequestStatus

from engine.exporter import TierReading
from engine.host_copies import CpuCopies, IdleLinkWorker
from engine.host_manager import HostTierManager
from engine.params import EngineParams, HostTierParams
from engine.shadow_requests import CappedRequest
from policy.host_tier import HostTier, LoadCost, LoadReason, load_or_compute, shadow_load
from policy.vocabulary import KvClass

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker
    from vllm.v1.kv_offload.config import OffloadingConfig
    from vllm.v1.request import Request

PULLED = RequestStatus.FINISHED_LENGTH_CAPPED
"""End of a shadow request whose pull is complete (engine.connector)."""
SLICE_S = 0.02
"""What is copied into the tier at a time takes so long at the link's bandwidth."""


class HostTierSpec(OffloadingSpec):
    """What vLLM builds the two sides of the tier from."""

    def __init__(self, config: OffloadingConfig) -> None:
        """Raises EngineParamsInvalid if the tier would not hold a single block."""
        super().__init__(config)
        self.offload_prompt_only = False
        self._params = HostTierParams.from_extra_config(config.extra_config)
        self._block_bytes = config.worker_kv_bytes_per_block
        self._slots = self._params.slots(self._block_bytes)

    def get_manager(self) -> HostTierManager:
        return HostTierManager(HostTier(self._slots, self._params.idle_age_s), self._block_bytes)

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        slice_blocks = int(SLICE_S * self._params.bandwidth_bytes_per_s / self._block_bytes)
        return IdleLinkWorker(self._copies(kv_caches), max(1, slice_blocks))

    def _copies(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if current_platform.is_cpu():
            return CpuCopies(kv_caches, self._slots)
        return CPUOffloadingWorker(kv_caches, blocks_per_chunk=1, num_cpu_chunks=self._slots)


class HostTierConnector(OffloadingConnector):
    """Knows shadow requests apart, and what a hit is worth."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if role is KVConnectorRole.SCHEDULER:
            self.manager: HostTierManager = self.scheduler.manager
            self._block_size = vllm_config.cache_config.block_size
            self._load_cost = self._cost_of_loads(vllm_config)
            self.hits = dict.fromkeys(LoadReason, 0)
            """Requests whose prefix went on in the tier, by what became of it."""
            self._verdicts: dict[str, LoadReason] = {}
            """Of requests that wait for their blocks; they are looked up again in each step."""
            self.hurried_stores = 0
            """Copies into the tier that whoever took their block had to wait for."""

    def reading(self) -> TierReading:
        tier, counts = self.manager.tier, self.manager.counts
        return TierReading(
            slots=tier.slots,
            block_bytes=self.manager.block_bytes,
            entries={str(kv_class): tier.entries(kv_class) for kv_class in KvClass},
            evictions={str(kv_class): count for kv_class, count in tier.evictions.items()},
            promotions=tier.promotions,
            stored_blocks=counts.stored,
            loaded_blocks=counts.loaded,
            refused_blocks=counts.refused,
            hits={str(reason): count for reason, count in self.hits.items()},
            hurried_stores=self.hurried_stores,
        )

    def on_new_request(self, request: Request) -> None:
        if isinstance(request, CappedRequest):
            self.manager.shadows.add(request.request_id)
        super().on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        if not isinstance(request, CappedRequest):
            return self._worth_loading(request, num_computed_tokens)
        if request.step_tokens is None:  # where shadows are not computed, none is capped
            return self._worth_loading(request, num_computed_tokens)
        # vLLM loads a prefix as a whole, and a shadow chunk ends where its grant does: the tier
        # would bring more than that, which is a failed assertion. It is asked for a whole load.
        if not request.may_load:
            return 0, False
        request.step_limit_tokens = None
        found, is_async = self._worth_loading(request, num_computed_tokens)
        request.prefix_found(num_computed_tokens + (found or 0))
        return found, is_async

    def _worth_loading(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        self._verdicts.pop(request.request_id, None)
        found, is_async = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if not found:
            return found, is_async
        reason = self._verdicts[request.request_id] = load_or_compute(found, self._load_cost)
        return (found, is_async) if reason is LoadReason.LOADED else (0, False)

    def shadow_load_tokens(self, request: Request, local_tokens: int, budget_s: float) -> int:
        """What a shadow may load behind the prefix that the pool holds; 0: it computes that."""
        hashes = request.block_hashes[local_tokens // self._block_size :]
        keys = (make_offload_key(block_hash, 0) for block_hash in hashes)
        tokens = self._block_size * sum(1 for _ in takewhile(self.manager.tier.can_read, keys))
        reason = shadow_load(tokens, self._load_cost, budget_s)
        return tokens if reason is LoadReason.LOADED else 0

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        meta = super().build_connector_meta(scheduler_output)
        assert isinstance(meta, OffloadingConnectorMetadata)
        self.hurried_stores += len(meta.jobs_to_flush or ())
        return meta

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        # vLLM looks out for its own loads and for what steps write, not for another connector's
        # pull: it would put new KV into a block that is still to be copied under its old key.
        self.scheduler._current_batch_allocated_block_ids.update(
            block.block_id for block in blocks.blocks[0] if block.block_hash is None
        )
        reason = self._verdicts.pop(request.request_id, None)
        if reason is not None:
            self.hits[reason] += 1
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        self._verdicts.pop(request.request_id, None)
        status = self.scheduler._req_status.get(request.request_id)
        if status is not None:
            (state,) = status.group_states
            if state.block_ids:
                # A preempted request may end by the output of a step in flight: its blocks belong
                # to others by now.
                del state.block_ids[len(block_ids[0]) :]
            elif isinstance(request, CappedRequest) and request.status is PULLED:
                # It was never scheduled, so vLLM has not told the tier of its blocks.
                state.block_ids.extend(block_ids[0])
        return super().request_finished_all_groups(request, block_ids)

    def _cost_of_loads(self, vllm_config: VllmConfig) -> LoadCost:
        params = EngineParams.from_additional_config(vllm_config.additional_config)
        tier = HostTierParams.from_extra_config(self._kv_transfer_config.kv_connector_extra_config)
        token_bytes = self.manager.block_bytes / self._block_size
        return LoadCost(
            iteration_s=params.step_time.fixed_s,
            s_per_computed_token=params.step_time.s_per_token,
            s_per_copied_token=token_bytes / tier.bandwidth_bytes_per_s,
        )
