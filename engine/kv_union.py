"""The host tier and NIXL together: the pool's prefix, then the host's, and only the rest is pulled.

vLLM's own MultiConnector takes the first connector that has anything: with 2,048 of 3,000 tokens in
the host tier it would pull all 3,000, or compute 952. Here one request may be brought by both at
once, into blocks that do not overlap, and it goes on when both are done.

Hosts: prefill_node, decode_node (engine.launch names it)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import (
    MultiConnector as StockMultiConnector,
)
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiKVConnectorMetadata
from vllm.v1.core.kv_cache_manager import KVCacheBlocks

from engine.host_tier import HostTierConnector
from engine.kv_connectors import HOST_TIER_CONNECTOR, HOST_TIER_MODULE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorBase_V1,
        KVConnectorMetadata,
    )
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class FromHost(NamedTuple):
    """Stands for a block that the host tier fills: for NIXL it is there already."""

    block_id: int
    block_hash: bytes = b"host tier"
    is_null: bool = False


class Parts(NamedTuple):
    """Where the tokens of one load come from."""

    local_tokens: int
    host_tokens: int
    remote_tokens: int


@dataclass
class UnionMetadata(MultiKVConnectorMetadata):
    from_both: set[str] = field(default_factory=set)
    """Requests whose load has two parts, and starts in this step."""


class MultiConnector(StockMultiConnector):
    """Of two: the host tier, and NIXL. vLLM decides by this name in several places."""

    host: HostTierConnector
    _nixl: KVConnectorBase_V1

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        host, nixl = self._connectors
        assert isinstance(host, HostTierConnector), host
        self.host = host
        self._nixl = nixl
        self._block_size = vllm_config.cache_config.block_size
        # In the scheduler's process:
        self._parts: dict[str, Parts] = {}
        self._pulled: set[str] = set()
        """Requests of which something is on its way from the other side."""
        self._from_both: set[str] = set()
        # In a worker's:
        self._half_done: dict[str, bool] = {}
        """By request with two parts: whether one of them is done."""
        self._failed: set[str] = set()

    # In the scheduler's process

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        host_tokens: int | None = 0
        # A pull that was given up may still end, and nothing but the request's id tells it from
        # another load: until then there is none.
        if request.request_id not in self._pulled:
            host_tokens, _ = self.host.get_num_new_matched_tokens(request, num_computed_tokens)
        if host_tokens is None:
            return None, False
        remote_tokens, _ = self._nixl.get_num_new_matched_tokens(
            request, num_computed_tokens + host_tokens
        )
        parts = Parts(num_computed_tokens, host_tokens, remote_tokens)
        self._parts[request.request_id] = parts
        tokens = host_tokens + remote_tokens
        return tokens, tokens > 0

    def get_loaded_kv_cache_group_ids(self, request: Request) -> tuple[int, ...]:
        by_host = self.host.get_loaded_kv_cache_group_ids(request)
        by_nixl = self._nixl.get_loaded_kv_cache_group_ids(request)
        return tuple(group_id for group_id in by_host if group_id in by_nixl)

    def get_external_cache_hit_sources(
        self, request: Request, num_external_tokens: int
    ) -> dict[CacheHitSource, int]:
        host_tokens = self._parts[request.request_id].host_tokens
        sources: dict[CacheHitSource, int] = self.host.get_external_cache_hit_sources(
            request, host_tokens
        )
        remote_tokens = num_external_tokens - host_tokens
        for source, tokens in self._nixl.get_external_cache_hit_sources(
            request, remote_tokens
        ).items():
            sources[source] = sources.get(source, 0) + tokens
        return sources

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        host_tokens = remote_tokens = 0
        if num_external_tokens:
            _, host_tokens, remote_tokens = self._parts[request.request_id]
            assert host_tokens + remote_tokens == num_external_tokens, request.request_id
        self.host.update_state_after_alloc(request, blocks, host_tokens)
        rest = self._after_host(request, blocks) if host_tokens else blocks
        self._nixl.update_state_after_alloc(request, rest, remote_tokens)
        if remote_tokens:
            self._pulled.add(request.request_id)
            if host_tokens:
                self._from_both.add(request.request_id)

    def _after_host(self, request: Request, blocks: KVCacheBlocks) -> KVCacheBlocks:
        local_tokens, host_tokens, _ = self._parts[request.request_id]
        first, end = (n // self._block_size for n in (local_tokens, local_tokens + host_tokens))
        group = blocks.blocks[0]  # one KV group: engine.features
        filled: Sequence[KVCacheBlock] = group[first:end]
        from_host = [FromHost(block.block_id) for block in filled]
        return KVCacheBlocks(([*group[:first], *from_host, *group[end:]],))

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> UnionMetadata:
        built = super().build_connector_meta(scheduler_output)
        from_both, self._from_both = self._from_both, set()
        return UnionMetadata(built.metadata, built.extra_async_saves, from_both)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self._pulled -= connector_output.finished_recving or set()
        super().update_connector_output(connector_output)

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        self._parts.pop(request.request_id, None)
        self._pulled.discard(request.request_id)
        finished: tuple[bool, dict[str, Any] | None] = super().request_finished_all_groups(
            request, block_ids
        )
        return finished

    # In a worker's process

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        assert isinstance(connector_metadata, UnionMetadata)
        self._half_done.update(dict.fromkeys(connector_metadata.from_both, False))
        super().bind_connector_metadata(connector_metadata)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        host = self.host.get_transfer_results(finished_req_ids)
        nixl = self._nixl.get_transfer_results(finished_req_ids)
        self._failed |= nixl.failed_recving
        received = self._whole(host.finished_recving) | self._whole(nixl.finished_recving)
        failed = received & self._failed
        self._failed -= failed
        return KVConnectorTransferResults(
            finished_sending=nixl.finished_sending,  # the host tier keeps no block from being freed
            finished_recving=received,
            failed_recving=failed,
        )

    def _whole(self, received: set[str]) -> set[str]:
        """Those of which nothing is left to come."""
        whole = set()
        for request_id in received:
            if self._half_done.get(request_id, True):
                self._half_done.pop(request_id, None)
                whole.add(request_id)
            else:
                self._half_done[request_id] = True
        return whole


# By this name vLLM's front end finds the statistics of a connector inside another one.
KVConnectorFactory.register_connector(HOST_TIER_CONNECTOR, HOST_TIER_MODULE, HOST_TIER_CONNECTOR)


def host_tier_of(connector: object) -> HostTierConnector | None:
    """Of an engine's connector."""
    if isinstance(connector, MultiConnector):
        return connector.host
    return connector if isinstance(connector, HostTierConnector) else None
