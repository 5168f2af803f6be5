"""A shadow job whose prefix was evicted into the host tier has it copied back before it starts.

vLLM loads what the tier holds of a prefix as a whole, which no chunk may cut. So the first chunk
of such a job is the load alone: the request holds its blocks until the copy is done, gives them
back to the pool, where they are entries of the shadow class, and starts like any job that finds
some there. Rejected: going on with the blocks in hand, a second kind of started shadow, which can
neither give them up nor be scheduled while the copy runs.

Host: engine.scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.request import RequestStatus

from engine.planning import Chunk, Plan, ShadowPlanner
from engine.shadow_requests import NEVER_S, ShadowRequest

if TYPE_CHECKING:
    from vllm.v1.outputs import KVConnectorOutput


class ShadowRestore(ShadowPlanner):
    """Loads at most once in a job's life, when it would start."""

    def _load_first(self, plan: Plan, now_s: float) -> Plan:
        """The plan, or instead of its first job's chunk what the tier holds of that job."""
        if self.host_tier is None or not plan.chunks:
            return plan
        shadow = plan.chunks[0].shadow
        if shadow.started or shadow.asked_tier:
            return plan
        shadow.asked_tier = True
        tokens = self.host_tier.shadow_load_tokens(
            shadow.request, shadow.hit_tokens, plan.grant.budget_s
        )
        room = self.shadow_kv.room(self._started(), len(self.running), now_s)
        if not tokens or room.fits(tokens, self.shadow_kv.claim(shadow)) < tokens:
            return plan
        shadow.request.may_load = True
        return plan._replace(chunks=[Chunk(shadow, 1)])

    def _update_from_kv_xfer_finished(self, kv_connector_output: KVConnectorOutput) -> None:
        super()._update_from_kv_xfer_finished(kv_connector_output)
        for request_id in self.finished_recving_kv_req_ids & self.shadows.keys():
            self._loaded(self.shadows[request_id])

    def _loaded(self, shadow: ShadowRequest) -> None:
        request = shadow.request
        self._update_waiting_for_remote_kv(request)
        self.kv_cache_manager.free(request)
        self.kv_holding_waiting.remove_request(request)
        self.deferred_waiting.discard(request)
        self._inflight_prefills.discard(request)
        self._set_kv_fetch_stage(request, None)
        request.num_computed_tokens = 0
        request.status = (
            RequestStatus.PREEMPTED if request.num_preemptions else RequestStatus.WAITING
        )
        shadow.visible = False
        shadow.looked_up_s = NEVER_S
        refusal = self._refusal_of(shadow)  # of a pause or a change in between
        if refusal is not None:
            self._end(request, refusal)
