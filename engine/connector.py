"""Pulls of shadow KV on a decode instance: they run while nothing else wants the link.

A shadow pull is held at arrival, with the lease on the other side kept up by vLLM's heartbeats. One
at a time enters vLLM's waiting path, when the link's gate lets it (policy.link_gate); when its
bytes are here it is finished without a forward pass. A decode instance never computes a shadow's
tokens: without a usable hand-off, or if the pull fails, the shadow request ends.

Before P is asked for a hand-off, the same gate is asked for a grant (engine.push_ask).

Host: decode_node.scheduler."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import RequestStatus

from engine.hand_offs import HandOffs, lease_s, sees_whole_prompts
from engine.intake import logger
from engine.kv_room import LOOK_UP_INTERVAL_S, ShadowKv
from engine.push_ask import PushAnswer, answer_text, read_ask
from engine.shadow_requests import CappedRequest, ShadowEnd, ShadowRequest
from engine.transfers import TransferScheduler
from kv_transport.errors import KvParamsInvalid
from kv_transport.kv_params import peer_of, wants_pull
from policy.kv_class import Shortage
from policy.link_gate import GateReason, LinkLoad, Wish
from policy.vocabulary import KvClass

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from engine.marks import Marks
    from engine.push_ask import PushAsk

_ENDS = {
    GateReason.TRUNCATED_BY_CAP: ShadowEnd.TRUNCATED_BY_CAP,
    GateReason.TOO_LONG: ShadowEnd.PUSH_TOO_LONG,
    GateReason.QUARANTINED: ShadowEnd.QUARANTINED,
}
"""What no waiting will change."""
_GIVEN_BACK = "given_back"


class PullScheduler(TransferScheduler):
    """Pulls shadow requests' KV, and computes nothing for them."""

    def _prepare(self) -> None:
        super()._prepare()
        self.shadow_kv = ShadowKv(
            self.kv_cache_manager,
            self.block_size,
            self.params.kv_class_params(),
            lambda: self.clock(),  # tests replace it
        )
        lease = lease_s(self.vllm_config)
        self.hand_offs = HandOffs(self.params.secret, lease, compares=sees_whole_prompts(self))

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
        # vLLM asserts on a hand-off without blocks, waits for ever for one that names no engine,
        # and reads whatever blocks it is told: none of these may reach it, whoever sent them.
        if wants_pull(request.kv_transfer_params):
            try:
                self.hand_offs.take(request, self.clock())
            except KvParamsInvalid as error:
                logger.warning("request %s: %s; its prompt is computed", request.request_id, error)
                self.link.counts.refused_hand_offs += 1
                request.kv_transfer_params = None
        super().add_request(request)

    def _marks_of(self, request: Request) -> Marks:
        marks = super()._marks_of(request)
        _ask_of(request)  # a mark that cannot be read is refused here
        return marks

    def _add_shadow(self, request: Request, marks: Marks) -> None:
        ask = _ask_of(request)
        holder = marks.session_id or request.request_id
        if ask is None:
            self.link.gate.give_back(holder)  # the push is here, and counts by itself
            super()._add_shadow(request, marks)
            return
        request.__class__ = CappedRequest
        assert isinstance(request, CappedRequest)
        shadow = ShadowRequest(request, marks, arrival_s=self.clock())
        request.stop_reason = answer_text(self._answer(shadow, holder, ask))
        self.requests[request.request_id] = request
        self._finish(request, RequestStatus.FINISHED_STOPPED)

    def _answer(self, shadow: ShadowRequest, holder: str, ask: PushAsk) -> PushAnswer:
        if ask.gives_back:
            self.link.gate.give_back(holder)
            return PushAnswer(reason=_GIVEN_BACK)
        refusal = super()._refusal_of(shadow)
        if refusal is not None:
            return PushAnswer(reason=refusal.value)
        now_s = self.clock()
        wish = self._wish(shadow, ask.peer, now_s)
        load = replace(self._link_load(now_s), normal_out=ask.normal_out)
        grant = self.link.ask(holder, wish, load, now_s)
        held_tokens = shadow.hit_tokens
        return PushAnswer(reason=grant.reason.value, tokens=grant.tokens, held_tokens=held_tokens)

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

    def _shadow_limit_s(self) -> float:
        # Held longer, a hand-off would only be found too old when its pull ends.
        return min(super()._shadow_limit_s(), self.hand_offs.useful_s)

    # The gate

    def _next_pull(self, now_s: float) -> ShadowRequest | None:
        """The first job that may start: one that finds no room holds up none behind it."""
        if not self.shadow_queue or self._pause_state != PauseState.UNPAUSED:
            return None
        load = self._link_load(now_s)
        for job in self.shadow_queue.ordered():
            shadow = self.shadows[job.request_id]
            peer = peer_of(shadow.request.kv_transfer_params)
            reason = self.link.may_start(self._wish(shadow, peer, now_s), load, now_s)
            if reason is GateReason.GRANTED:
                return shadow
            if reason in _ENDS:
                self._end(shadow.request, _ENDS[reason])
            elif reason is GateReason.NOTHING_MISSING:
                self._finish(shadow.request, RequestStatus.FINISHED_LENGTH_CAPPED)
            elif reason is not GateReason.NO_FREE_KV:
                return None  # what closes the link closes it for all of them
        return None

    def _link_load(self, now_s: float) -> LinkLoad:
        meter = self.link.meter
        running, waiting = self.get_request_counts()
        pulling = sum(request.request_id in meter for request in self.kv_holding_waiting)
        return LinkLoad(
            normal_in=meter.in_flight(KvClass.NORMAL, now_s),
            requests_waiting=waiting - pulling - self.num_waiting_for_streaming_input,
            free_slots=self.max_num_running_reqs - running,
            pushes_running=meter.in_flight(KvClass.SHADOW, now_s),
            pushes_waiting=len(self.shadow_queue),
        )

    def _wish(self, shadow: ShadowRequest, peer: str, now_s: float) -> Wish:
        is_known = now_s - shadow.looked_up_s <= LOOK_UP_INTERVAL_S
        ever_fits = is_known or not self._never_fits(shadow, now_s)
        room = self.shadow_kv.room((), len(self.running), now_s)
        missing_tokens = shadow.missing_tokens
        return Wish(
            peer=peer,
            missing_tokens=missing_tokens,
            free_tokens=room.fits(missing_tokens, self.shadow_kv.claim(shadow)),
            ever_fits=ever_fits,
        )

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


def _ask_of(request: Request) -> PushAsk | None:
    sampling = request.sampling_params
    return None if sampling is None else read_ask(sampling.extra_args)
