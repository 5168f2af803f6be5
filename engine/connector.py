"""Pulls of KV on a decode instance: a shadow pull runs while nothing else wants the link, and no
pull waits for ever.

A shadow pull is held at arrival, with the lease on the other side kept up by vLLM's heartbeats. One
at a time enters vLLM's waiting path while no request waits and no other pull is in flight; when its
bytes are here it is finished without a forward pass. A decode instance never computes a shadow's
tokens: without a usable hand-off, or if the pull fails, the shadow request ends.

vLLM has no limit on how long a pull may take: a frozen peer would hang the request. After the
limit the request starts over without the hand-off. The blocks that the late transfer may still
write to are kept aside until it ends: giving them to someone else would corrupt that request.

Host: decode_node.scheduler."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import RequestStatus

from engine.intake import logger
from engine.kv_room import LOOK_UP_INTERVAL_S, ShadowKv
from engine.shadow_requests import ShadowEnd, ShadowRequest
from engine.visible import VisibleScheduler
from kv_transport.errors import KvParamsInvalid
from kv_transport.kv_params import check_pullable, wants_pull
from policy.kv_class import Shortage

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class PullScheduler(VisibleScheduler):
    """Pulls shadow requests' KV, and computes nothing for them."""

    def _prepare(self) -> None:
        super()._prepare()
        self.shadow_kv = ShadowKv(
            self.kv_cache_manager,
            self.block_size,
            self.params.kv_class_params(),
            lambda: self.clock(),  # tests replace it
        )
        # Hybrid models and some drafters leave the prompt's last tokens to the decode instance.
        self._whole_prompts = (
            len(self.kv_cache_config.kv_cache_groups) == 1
            and not self.has_mamba_layers
            and self.num_prefill_lookahead <= 1
        )
        self._pulls_since_s: dict[str, float] = {}
        self._kept_aside: dict[str, list[KVCacheBlock]] = {}

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        now_s = self.clock()
        self._expire(now_s)
        self._give_up_late_pulls(now_s)
        shadow = self._next_pull(now_s)
        if shadow is not None:
            shadow.visible = True
            self.waiting.add_request(shadow.request)
        output = super().schedule(throttle_prefills)
        if shadow is not None:
            self._settle(shadow)
        self._note_new_pulls(now_s)
        return output

    # Intake

    def add_request(self, request: Request) -> None:
        # vLLM asserts on a hand-off without blocks and waits for ever for one that names no
        # engine: neither may reach it, whoever sent it.
        if wants_pull(request.kv_transfer_params):
            # One that is aborted at once pulls nothing, and its prompt is a dummy: by it vLLM's
            # front end gives the blocks of a call that it refused back to the other side.
            fits = self._whole_prompts and not request.abort_immediately
            prompt_tokens = request.num_prompt_tokens if fits else None
            try:
                check_pullable(request.kv_transfer_params, prompt_tokens)
            except KvParamsInvalid as error:
                logger.warning("request %s: %s; its prompt is computed", request.request_id, error)
                request.kv_transfer_params = None
        super().add_request(request)

    def _refusal_of(self, shadow: ShadowRequest) -> ShadowEnd | None:
        request = shadow.request
        if self.connector is None or not wants_pull(request.kv_transfer_params):
            return ShadowEnd.NO_HANDOFF
        if request.skip_reading_prefix_cache:  # vLLM pulls nothing for it, but would compute it
            return ShadowEnd.NO_HANDOFF
        refusal = super()._refusal_of(shadow)
        if refusal is None and self._never_fits(shadow, self.clock()):
            return ShadowEnd.TRUNCATED_BY_CAP
        return refusal

    # The gate

    def _next_pull(self, now_s: float) -> ShadowRequest | None:
        if not self.shadow_queue or self._pause_state != PauseState.UNPAUSED:
            return None
        running, waiting = self.get_request_counts()
        if waiting > self.num_waiting_for_streaming_input or running >= self.max_num_running_reqs:
            return None  # waiting counts the pulls in flight, a shadow's among them
        shadow = self.shadows[self.shadow_queue.ordered()[0].request_id]
        is_known = now_s - shadow.looked_up_s <= LOOK_UP_INTERVAL_S
        if not is_known and self._never_fits(shadow, now_s):
            self._end(shadow.request, ShadowEnd.TRUNCATED_BY_CAP)
            return None
        room = self.shadow_kv.room((), running, now_s)
        missing = shadow.missing_tokens
        return shadow if room.fits(missing, self.shadow_kv.claim(shadow)) == missing else None

    def _never_fits(self, shadow: ShadowRequest, now_s: float) -> bool:
        """Looks up what is cached of it: what normal traffic has there does not count."""
        self.shadow_kv.look_up(shadow, now_s)
        room = self.shadow_kv.room((), 0, now_s)
        found = self.shadow_kv.shortage(shadow, shadow.missing_tokens, room)
        self.shadow_kv.truncations += found is Shortage.TRUNCATED_BY_CAP
        return found is Shortage.TRUNCATED_BY_CAP

    def _settle(self, shadow: ShadowRequest) -> None:
        request = shadow.request
        if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS:
            # A pull that was posted cannot be called back: nothing supersedes it any more.
            self.shadow_queue.cancel(request.request_id)
            return
        # Left at the head of the queue it would hold up what arrives next.
        shadow.visible = False
        shadow.looked_up_s = float("-inf")
        self.waiting.remove_request(request)
        self.deferred_waiting.discard(request)

    # The end of a pull

    def _update_from_kv_xfer_finished(self, kv_connector_output: KVConnectorOutput) -> None:
        received = kv_connector_output.finished_recving or set()
        late = received & self._kept_aside.keys()
        for request_id in late:
            blocks = self._kept_aside.pop(request_id)
            self.kv_cache_manager.block_pool.free_blocks(reversed(blocks))
        if late:
            kv_connector_output = replace(kv_connector_output, finished_recving=received - late)
        super()._update_from_kv_xfer_finished(kv_connector_output)
        for request_id in self.finished_recving_kv_req_ids & self.shadows.keys():
            self._finish_pull(self.shadows[request_id].request)

    def _finish_pull(self, request: Request) -> None:
        """The bytes are in the prefix cache, which is all that a shadow is for."""
        failed = request.request_id in self.failed_recving_kv_req_ids
        self._update_waiting_for_remote_kv(request)
        request.status = RequestStatus.WAITING  # else vLLM would keep its blocks for a transfer
        if failed:
            self._end(request, ShadowEnd.PULL_FAILED)
            return
        self.shadow_stats.pulled += 1
        self._finish(request, RequestStatus.FINISHED_LENGTH_CAPPED)

    # Pulls that take too long

    def _note_new_pulls(self, now_s: float) -> None:
        pulling = {
            request.request_id
            for request in self.kv_holding_waiting
            if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        }
        if pulling or self._pulls_since_s:
            self._pulls_since_s = {
                request_id: self._pulls_since_s.get(request_id, now_s) for request_id in pulling
            }

    def _give_up_late_pulls(self, now_s: float) -> None:
        limit_s = self.params.pull_timeout_s
        for request_id, since_s in list(self._pulls_since_s.items()):
            request = self.requests.get(request_id)
            if (
                now_s - since_s > limit_s
                and request is not None
                and request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
                and request_id not in self.finished_recving_kv_req_ids
            ):
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
        self.shadow_stats.pulls_timed_out += 1
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
