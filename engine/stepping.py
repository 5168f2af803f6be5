"""vLLM's own step, with few calls of ours in it.

Hundreds of requests go on in a step, and a call of ours for each would cost more than all that is
planned. They need no word with us as long as they cannot fail to get their blocks, and what runs
hits no entry. So vLLM's own classes hand out the blocks until the first turn comes of a request
that is admitted, or of a shadow (`CappedRequest.before_turn`).

Host: engine.reclaim."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.visible import VisibleScheduler

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request


class SteppingScheduler(VisibleScheduler):
    """Whoever subclasses prepares the step before it calls `schedule` here."""

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        self.shadow_kv.aside(self._most_new_blocks())
        try:
            return super().schedule(throttle_prefills)
        finally:
            self.shadow_kv.back()

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        # vLLM asks this first about each request that it may admit, once all that runs has its
        # tokens: the request may hit entries, and reclaim blocks.
        self.shadow_kv.back()
        ready: bool = super()._handle_blocked_waiting_request(request)
        return ready

    def _most_new_blocks(self) -> int:
        """An upper limit of what the running requests take in the step."""
        running = len(self.running)
        drafted = running * (1 + self.num_spec_tokens + self.num_lookahead_tokens)
        return self.shadow_kv.blocks_for(self.max_num_scheduled_tokens + drafted, running)
