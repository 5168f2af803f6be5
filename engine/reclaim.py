"""What started shadow requests hold (KV blocks, a model runner slot), and how they give it up.

Normal traffic comes first: vLLM would preempt one of its running requests before it looked at a
hidden one.

Host: engine.planning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.request import RequestStatus

from engine.kv_room import ShadowKv
from engine.shadow_requests import NEVER_S, ShadowEnd, ShadowRequest
from engine.stepping import SteppingScheduler

if TYPE_CHECKING:
    from vllm.v1.request import Request


class ShadowBlocks(SteppingScheduler):
    """Hidden requests that may be RUNNING."""

    def _prepare(self) -> None:
        super()._prepare()
        self._holding: dict[str, ShadowRequest] = {}
        """Started ones, by request id; one that is admitted counts from the end of that step on."""
        self.shadow_kv = ShadowKv(
            self.kv_cache_manager,
            self.block_size,
            self.params.kv_class_params(),
            lambda: self.clock(),  # tests replace it
            self._reclaim,
        )

    def _started(self) -> list[ShadowRequest]:
        return list(self._holding.values())

    def _in_flight(self) -> bool:
        return any(shadow.request.num_in_flight_tokens for shadow in self.shadows.values())

    def _yield_slots(self) -> None:
        """A model runner has a slot for each started request: those that wait come first."""
        if not self._holding:
            return
        spare = self.max_num_running_reqs - sum(self.get_request_counts())
        if spare < len(self._holding):
            for shadow in self._started()[max(0, spare) :]:
                self._drop(shadow)

    def _reclaim(self, request: Request) -> bool:
        """vLLM found no blocks for this request: a shadow gives up its own, the least wanted."""
        if request.request_id in self.shadows:
            return False
        # vLLM schedules what runs before what waits: when it asks for a waiting request, the
        # visible shadows are in the step already, and their blocks with them.
        in_the_step = request.status != RequestStatus.RUNNING
        started = [shadow for shadow in self._started() if not (in_the_step and shadow.visible)]
        if not started:
            return False
        order = {job.request_id: rank for rank, job in enumerate(self.shadow_queue.ordered())}
        self._drop(max(started, key=lambda shadow: order.get(shadow.request.request_id, -1)))
        return True

    def _inflight_prefill_reserved_blocks(self) -> int:
        # vLLM admits no load from elsewhere into what unfinished prompts will need: a shadow's may
        # be taken.
        return sum(
            self._request_remaining_blocks(request)
            for request in self._inflight_prefills
            if request.request_id not in self.shadows
        )

    def _drop(self, shadow: ShadowRequest) -> None:
        """Its blocks go back to the pool, what it computed stays cached as long as that lasts."""
        request = shadow.request
        if shadow.visible:
            self.running.remove(request)
        self._preempt_request(request, self.clock(), drop_stale_output=self.requires_kv_delivery)
        self.waiting.remove_request(request)
        self._holding.pop(request.request_id, None)
        shadow.looked_up_s = NEVER_S
        self.shadow_stats.drops += 1
        if request.request_id not in self.shadow_queue:
            # All its tokens were scheduled; the step that ends it is still in flight.
            self._end(request, ShadowEnd.DROPPED)

    def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        # vLLM looks at `self.running` only; a hidden shadow must not make a reset fail.
        for shadow in self._started():
            self._drop(shadow)
        return super().reset_prefix_cache(reset_running_requests, reset_connector)

    def _free_request(
        self, request: Request, delay_free_blocks: bool = False
    ) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        is_shadow = request.request_id in self.shadows
        self._holding.pop(request.request_id, None)
        transfer = super()._free_request(request, delay_free_blocks)
        if is_shadow and request.request_id in self.requests:
            self.shadow_kv.pinned.add(request.request_id)
        return transfer

    def _free_blocks(self, request: Request) -> None:
        super()._free_blocks(request)
        self.shadow_kv.pinned.discard(request.request_id)
