"""The scheduler plug-in: shadow requests run in what the steps of normal traffic leave unused.

A shadow request is a real vLLM request that is hidden: it may hold KV blocks and be RUNNING, but it
is not in `self.running`. One step, top to bottom (`schedule`):

    plan     which shadows, how many tokens: policy.slack decides, the KV room limits
    unhide   they are appended behind everything else, each with its end moved to its grant
    (vLLM builds the step: one ordinary SchedulerOutput)
    hide     whatever happened to them, they leave vLLM's queues again

Nothing waits for a shadow: it is planned only while nothing waits, and if a normal request cannot
get its blocks, hidden shadows give up theirs first (engine.reclaim). Rejected: submitting each
chunk as a request of its own; that sends the whole block table in every step.

Hosts: prefill_node.scheduler, colocated.scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.exporter import Controls
from engine.hand_offs import prompt_of, sees_whole_prompts
from engine.restore import ShadowRestore
from engine.shadow_requests import NEVER_S, ShadowRequest
from kv_transport.seal import sealed

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    from engine.marks import Marks
    from engine.planning import Chunk
    from engine.timing import FinishedStep


class ShadowScheduler(ShadowRestore):
    """Computes shadow requests: on prefill and colocated instances."""

    def _prepare(self) -> None:
        super()._prepare()
        self._shown: list[ShadowRequest] = []

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        now_s = self.clock()
        plan = self._load_first(self._plan(now_s), now_s)
        if plan.chunks:
            self._unhide(plan.chunks)
        output = super().schedule(throttle_prefills)
        if plan.chunks:
            self._hide(output)
        shown = [chunk.shadow.request for chunk in plan.chunks]
        self.engine_clock.built(
            output, self.requests, shown, now_s, plan.grant, plan.waiting_requests
        )
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        now_s = self.clock()
        finished = self.engine_clock.done(scheduler_output, now_s)
        if finished is not None:
            self._finished(finished)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        self.request_clocks.emitted(scheduler_output, now_s)
        return outputs

    # What is known of each step and each arrival

    def _finished(self, finished: FinishedStep) -> None:
        """A step that carried something has come back."""
        self.observed.finished(finished, self.clock(), self._shadow_state)

    def _arrived(self, wait_s: float, marks: Marks) -> None:
        """A normal or routed request came in, which had waited in the engine's inbox."""
        self.observed.arrived(wait_s, self.clock())

    def _shadow_state(self) -> tuple[int, int]:
        return len(self.shadow_queue), self.shadow_kv.held_blocks

    def _controls(self) -> Controls:
        return Controls(
            credit_s=self.slack.credit_s,
            base_factor=self.step_time.base_factor,
            context_factor=self.step_time.context_factor,
            read_factor=self.step_time.read_factor,
            trusted_tokens=self.step_time.trusted_tokens or 0,
        )

    def _params_changed(self) -> None:
        super()._params_changed()
        self.slack.change(self.params.slack_params())
        self.step_time.trust(self.params.first_chunk_tokens)

    # Unhide and hide

    def _unhide(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            shadow, request = chunk.shadow, chunk.shadow.request
            shadow.visible = True
            self._shown.append(shadow)
            if shadow.started:
                request.step_limit_tokens = request.num_computed_tokens + chunk.tokens
                request.before_turn = self.shadow_kv.back
                # vLLM sends the whole prompt again of a request that the step before did not carry.
                # Its worker reads that only to recover output tokens, of which a shadow has none
                # while it is planned; its KV connectors that would read it are refused.
                self.prev_step_scheduled_req_ids.add(request.request_id)
                self.running.append(request)
            else:
                # vLLM fills an admission of one token up with drafts, and their KV would stand in
                # the middle of the prompt.
                least_tokens = 2 if self.num_spec_tokens else 1
                request.step_tokens = max(chunk.tokens, least_tokens)
                self.waiting.add_request(request)

    def get_request_counts(self) -> tuple[int, int]:
        """vLLM shares a step's tokens among so many: shadows that it sees do not count."""
        running, waiting = super().get_request_counts()
        if not self._shown:
            return running, waiting
        started = sum(shadow.started for shadow in self._shown)
        return running - started, waiting - (len(self._shown) - started)

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        # vLLM decides here whether a chunk was the prompt's last: it must see the real end.
        for shadow in self._shown:
            shadow.request.uncap()
        super()._update_after_schedule(scheduler_output)

    def _hide(self, output: SchedulerOutput) -> None:
        hidden = {shadow.request for shadow in self._shown}
        # They were appended last and are there still, unless a request was admitted behind them.
        while self.running and self.running[-1] in hidden:
            hidden.discard(self.running.pop())
        if hidden:
            self.running = [request for request in self.running if request not in hidden]
            self.waiting.remove_requests(hidden)
            self.deferred_waiting -= hidden
        for shadow in self._shown:
            shadow.visible = shadow.loading
            shadow.looked_up_s = NEVER_S
            if shadow.started:
                self._holding[shadow.request.request_id] = shadow
            else:
                self._holding.pop(shadow.request.request_id, None)
            tokens = output.num_scheduled_tokens.get(shadow.request.request_id, 0)
            if tokens:
                self._served(shadow, tokens)
        self._shown = []

    def _served(self, shadow: ShadowRequest, tokens: int) -> None:
        request_id = shadow.request.request_id
        self.shadow_queue.served(request_id, tokens)
        if not shadow.missing_tokens:
            self.shadow_queue.cancel(request_id)  # the step that ends it is in flight
        self.shadow_stats.tokens += tokens
        self.shadow_stats.steps += 1

    def _foreground_arrived(self, request: Request, marks: Marks) -> None:
        self._arrived(self.request_clocks.arrived(request, marks, self.clock()), marks)

    def _free_request(
        self, request: Request, delay_free_blocks: bool = False
    ) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        self.request_clocks.forget(request.request_id)
        kv_params, ec_params = super()._free_request(request, delay_free_blocks)
        if kv_params is not None:
            prompt = prompt_of(request) if sees_whole_prompts(self) else ""
            kv_params = sealed(kv_params, prompt, self.params.secret)
        return kv_params, ec_params
