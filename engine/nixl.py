"""vLLM's NIXL pull connector, and one thing more: a pull counts only within its blocks' lease.

P gives the blocks of a hand-off to others once their lease has ended, and tells nobody: a D that
reads them later gets somebody else's KV, and no error. P, D or the coordinator may have been frozen
in between, so nobody can know by waiting: P's scheduler writes the end of the lease on the
hand-off, and D's worker, which knows how far P's clock is from its own, takes a read that was not
done before it for a failed one. Heartbeats that D sends make the lease longer, but nothing says
that P has received them: here they do not count.

vLLM decides by the connector's name in several places, so ours has the same one.

Host: vLLM, by `kv_connector_module_path` (engine.launch)."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlBaseConnector
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import (
    NixlPullConnectorScheduler,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
from vllm.distributed.nixl_utils import NixlWrapper
from vllm.logger import init_logger

from kv_transport.nixl_progress import sleeping_progress

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import ReqMeta
    from vllm.forward_context import ForwardContext
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

logger = init_logger("vllm.shadowprefill")


class LeasingScheduler(NixlPullConnectorScheduler):
    """P's half."""

    def request_finished(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        keeps_blocks, handoff = super().request_finished(request, block_ids)
        if handoff is not None and keeps_blocks:
            # The worker counts the same time from when it hears of it: it frees no earlier.
            handoff["remote_blocks_expiry_time"] = self._reqs_need_send[request.request_id]
        return keeps_blocks, handoff

    def give_up(self, request_id: str) -> None:
        """Nobody knows of this hand-off: its lease ends now."""
        self._reqs_need_send[request_id] = time.perf_counter()


class LeasedWorker(NixlPullConnectorWorker):
    """D's half."""

    def __init__(
        self, vllm_config: VllmConfig, engine_id: str, kv_cache_config: KVCacheConfig
    ) -> None:
        # Beside GPUs there are cores to spare, and a quick answer is worth one.
        on_cpu = vllm_config.kv_transfer_config.kv_buffer_device == "cpu"
        with sleeping_progress(NixlWrapper) if on_cpu else nullcontext():
            super().__init__(vllm_config, engine_id, kv_cache_config)
        # A read that would be too late is not even begun. vLLM has this for blocks of a D that are
        # read back; its worker asks this flag nothing else.
        self._bidirectional_kv_xfer_enabled = True

    def _pop_done_transfers(self, transfers: dict[str, list[int]]) -> tuple[set[str], set[str]]:
        done, failed = super()._pop_done_transfers(transfers)
        late = {request_id for request_id in done - failed if self._is_late(request_id)}
        for request_id in late:
            self.xfer_stats.record_kv_expired_req()
            logger.warning(
                "pull of request %s ended too close to the end of its lease or after it: what it "
                "brought is not used",
                request_id,
            )
        return done, failed | late

    def _is_late(self, request_id: str) -> bool:
        meta = self._recving_metadata.get(request_id)
        return meta is not None and self._is_turn2_read_expired(meta)

    def _is_turn2_read_expired(self, meta: ReqMeta) -> bool:
        # The thread of the handshake shows the peer a moment before its clock: a read may begin
        # then, and is judged when it ends.
        is_known = meta.remote.engine_id in self._engine_clock_offset
        return is_known and super()._is_turn2_read_expired(meta)


class NixlConnector(NixlBaseConnector):
    """NixlPullConnector, made of the halves above."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if role is KVConnectorRole.SCHEDULER:
            self.connector_scheduler = LeasingScheduler(
                vllm_config, self.engine_id, kv_cache_config
            )
        else:
            self.connector_worker = LeasedWorker(vllm_config, self.engine_id, kv_cache_config)

    def give_up(self, request_id: str) -> None:
        """Of a hand-off whose answer went to nobody; for P's scheduler."""
        half = self.connector_scheduler
        assert isinstance(half, LeasingScheduler)
        half.give_up(request_id)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        worker, metadata = self.connector_worker, self._connector_metadata
        assert isinstance(worker, LeasedWorker)
        assert isinstance(metadata, NixlConnectorMetadata)
        worker.start_load_kv(metadata)
