"""Every pull of KV into a decode instance: known from its start to its end, and given up if it has
none.

vLLM has no limit on how long a pull may take: a frozen peer would hang the request. After the limit
the request starts over without the hand-off. The blocks that the late transfer may still write to
are kept aside until it ends: giving them to someone else would corrupt that request.

Host: engine.connector."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vllm.v1.request import RequestStatus

from engine.inbound import InboundLink
from engine.intake import logger
from engine.shadow_requests import ShadowEnd
from engine.visible import VisibleScheduler
from kv_transport.kv_params import peer_of
from kv_transport.link_meter import Transfer
from policy.vocabulary import KvClass

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from engine.link_series import LinkReading


class TransferScheduler(VisibleScheduler):
    """Tells its inbound link of each transfer."""

    def _prepare(self) -> None:
        super()._prepare()
        self.link = InboundLink(self.params.link_gate_params(self.block_size), self.observed.pulled)
        self._bytes_per_token = _bytes_per_token(self.kv_cache_config, self.vllm_config)
        self._kept_aside: dict[str, list[KVCacheBlock]] = {}

    # Starts

    def _note_new_pulls(self, now_s: float) -> None:
        """After vLLM has built a step: its worker posts them with it."""
        for request in self.kv_holding_waiting:
            request_id = request.request_id
            if (
                request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
                and request_id not in self.link.meter
                and request_id not in self.finished_recving_kv_req_ids
            ):
                self.link.started(request_id, self._transfer_of(request, now_s))

    def _transfer_of(self, request: Request, now_s: float) -> Transfer:
        stats = request.prefill_stats
        tokens = request.num_computed_tokens if stats is None else stats.num_external_cached_tokens
        is_shadow = request.request_id in self.shadows
        return Transfer(
            kv_class=KvClass.SHADOW if is_shadow else KvClass.NORMAL,
            size_bytes=int(tokens * self._bytes_per_token),
            tokens=tokens,
            peer=peer_of(request.kv_transfer_params),
            started_s=now_s,
        )

    # Ends

    def _update_from_kv_xfer_finished(self, kv_connector_output: KVConnectorOutput) -> None:
        received = kv_connector_output.finished_recving or set()
        failed = (kv_connector_output.failed_recving or set()) | self.failed_recving_kv_req_ids
        now_s = self.clock()
        for request_id in received:
            self.link.ended(request_id, now_s, ok=request_id not in failed)
        late = received & self._kept_aside.keys()
        for request_id in late:
            blocks = self._kept_aside.pop(request_id)
            self.kv_cache_manager.block_pool.free_blocks(reversed(blocks))
        if late:
            kv_connector_output = replace(kv_connector_output, finished_recving=received - late)
        super()._update_from_kv_xfer_finished(kv_connector_output)

    # Pulls that take too long

    def _give_up_late_pulls(self, now_s: float) -> None:
        limit_s = self.params.pull_timeout_s
        for request_id in self.link.meter.overdue(limit_s, now_s):
            self.link.gave_up(request_id, now_s)
            self.shadow_stats.pulls_timed_out += 1
            request = self.requests.get(request_id)
            if request is None or request.status != RequestStatus.WAITING_FOR_REMOTE_KVS:
                continue  # its client has left: vLLM itself keeps the blocks until the end
            logger.warning(
                "pull of request %s gave no result in %.1f s; its prompt is %s",
                request_id,
                limit_s,
                "left" if request_id in self.shadows else "computed here",
            )
            self._give_up_pull(request)

    def _give_up_pull(self, request: Request) -> None:
        blocks = self.kv_cache_manager.pop_blocks_for_free(request)
        self._kept_aside[request.request_id] = blocks
        self.kv_holding_waiting.remove_request(request)
        self.deferred_waiting.discard(request)
        self.failed_recving_kv_req_ids.discard(request.request_id)
        self._inflight_prefills.discard(request)
        self._set_kv_fetch_stage(request, None)
        request.num_computed_tokens = 0
        # The connector has marked the hand-off as used: vLLM computes the prompt now.
        request.status = (
            RequestStatus.PREEMPTED if request.num_preemptions else RequestStatus.WAITING
        )
        if request.request_id in self.shadows:
            self._end(request, ShadowEnd.PULL_TIMED_OUT)
        else:
            self.waiting.prepend_request(request)

    def _link_reading(self) -> LinkReading:
        return self.link.reading(self.clock())


def _bytes_per_token(kv: KVCacheConfig, config: VllmConfig) -> float:
    """Of KV, in all ranks."""
    groups = [(group.kv_cache_spec, len(group.layer_names)) for group in kv.kv_cache_groups]
    ranks: int = config.parallel_config.tensor_parallel_size
    return ranks * sum(spec.page_size_bytes * layers / spec.block_size for spec, layers in groups)
