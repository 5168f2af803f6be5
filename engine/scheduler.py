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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.interface import PauseState

from engine.exporter import Controls
from engine.kv_room import LOOK_UP_INTERVAL_S
from engine.reclaim import ShadowBlocks
from engine.request_clocks import RequestClocks
from engine.shadow_requests import NEVER_S, ShadowEnd, ShadowRequest
from engine.timing import EngineClock
from policy.kv_class import Shortage
from policy.slack import JobLoad, SlackController, SlackGrant, SlackReason, StepLoad

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.engine import EngineCoreOutputs
    from vllm.v1.outputs import ModelRunnerOutput
    from vllm.v1.request import Request

    from engine.kv_room import KvRoom
    from engine.marks import Marks
    from engine.timing import FinishedStep

JOBS_PER_STEP = 4
NO_GRANT = SlackGrant(0, SlackReason.NO_JOB)
STALL_S = 2.0
"""An engine with nothing else to do that grants nothing for so long never will, and vLLM's loop
polls while anything is unfinished."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one shadow request in the step that is being built."""

    shadow: ShadowRequest
    tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What the step that is being built may carry of shadow work, and why."""

    chunks: list[Chunk]
    grant: SlackGrant
    waiting_requests: int


class ShadowScheduler(ShadowBlocks):
    """Computes shadow requests: on prefill and colocated instances."""

    def _prepare(self) -> None:
        super()._prepare()
        self.slack = SlackController(self.params.slack_params())
        self.step_time = self.params.step_time_model()
        self.request_clocks = RequestClocks(
            self.slack,
            self.step_time,
            chunk_tokens=self.max_num_scheduled_tokens,
            decode_tokens=1 + self.num_spec_tokens,
        )
        self.engine_clock = EngineClock(self.slack, self.step_time, self.request_clocks)
        self._shown: list[ShadowRequest] = []
        self._stalled_since_s: float | None = None

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        now_s = self.clock()
        self._expire(now_s)
        self._yield_slots()
        plan = self._plan(now_s)
        self._unhide(plan.chunks)
        output = super().schedule(throttle_prefills)
        self._hide(plan.chunks, output)
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
            trusted_tokens=self.step_time.trusted_tokens or 0,
        )

    def _params_changed(self) -> None:
        super()._params_changed()
        self.slack.change(self.params.slack_params())
        self.step_time.trust(self.params.first_chunk_tokens)

    # Plan

    def _plan(self, now_s: float) -> Plan:
        waiting = self.get_request_counts()[1] - self.num_waiting_for_streaming_input
        if not self.shadow_queue or self._pause_state != PauseState.UNPAUSED:
            return Plan([], NO_GRANT, waiting)
        started = self._started()
        jobs = self._runnable(now_s, len(started))
        room = self.shadow_kv.room(started, len(self.running), now_s)
        jobs, free_tokens = self._first_that_fits(now_s, jobs, room)
        load = self._step_load(now_s, waiting, jobs, free_tokens)
        grant = self.slack.grant(load, self.step_time)
        self.shadow_stats.count_grant(grant.reason.value)
        self._end_stalled(grant.tokens, now_s)
        return Plan(self._spread(jobs, grant.tokens, room), grant, waiting)

    def _runnable(self, now_s: float, started_jobs: int) -> list[ShadowRequest]:
        """The next jobs, in the order of the queue, of which a token could be scheduled now."""
        jobs: list[ShadowRequest] = []
        spare_slots = self.max_num_running_reqs - len(self.running) - started_jobs
        for job in self.shadow_queue.ordered():
            shadow = self.shadows[job.request_id]
            if shadow.request.num_stale_output_tokens > 0:
                continue  # a step that it was preempted out of is still in flight
            if not shadow.started:
                if spare_slots <= 0:
                    continue
                spare_slots -= 1
                if shadow.looked_up_s == NEVER_S:
                    self.shadow_kv.look_up(shadow, now_s)
            jobs.append(shadow)
            if len(jobs) == JOBS_PER_STEP:
                break
        return jobs

    def _first_that_fits(
        self, now_s: float, jobs: list[ShadowRequest], room: KvRoom
    ) -> tuple[list[ShadowRequest], int]:
        """The jobs from the first one on whose next chunk fits, and the room that it has."""
        for index, shadow in enumerate(jobs):
            tokens = self._room_for(shadow, room)
            stale = not shadow.started and now_s - shadow.looked_up_s > LOOK_UP_INTERVAL_S
            if not tokens and stale:
                self.shadow_kv.look_up(shadow, now_s)
                tokens = self._room_for(shadow, room)
            if tokens:
                return jobs[index:], tokens
        if jobs:
            self._make_room(jobs, room)
        return jobs[:1], 0

    def _room_for(self, shadow: ShadowRequest, room: KvRoom) -> int:
        """0 if it is less than the smallest chunk that is worth its cost."""
        tokens = room.fits(self.max_num_scheduled_tokens, self.shadow_kv.claim(shadow))
        return tokens if tokens >= self._minimum_tokens(shadow) else 0

    def _minimum_tokens(self, shadow: ShadowRequest) -> int:
        busy = bool(self.running)
        return self.slack.minimum_tokens(_job_load(shadow), self.step_time, busy=busy)

    def _make_room(self, jobs: list[ShadowRequest], room: KvRoom) -> None:
        """No chunk fits. A job that has all that it will ever get ends, one that only waits for the
        cached entries to grow old does so; else a started job gives way to the first in the order,
        or jobs that each hold a part would wait for one another."""
        for shadow in jobs:
            found = self.shadow_kv.shortage(shadow, self._minimum_tokens(shadow), room)
            if found is Shortage.TRUNCATED_BY_CAP:
                self.shadow_kv.truncations += 1
                self._end(shadow.request, ShadowEnd.TRUNCATED_BY_CAP)
                return
            if found is Shortage.NOT_IDLE_YET:
                self._stalled_since_s = None
                return
        others = [
            shadow
            for shadow in self._started()
            if shadow is not jobs[0] and shadow.request.request_id in self.shadow_queue
        ]
        if others:
            self._drop(others[-1])

    def _step_load(
        self, now_s: float, waiting: int, jobs: list[ShadowRequest], free_tokens: int
    ) -> StepLoad:
        in_flight_s, in_flight_charge_s = self.engine_clock.in_flight_s()
        budget = self.max_num_scheduled_tokens
        # A request that waits settles the matter: what runs need not be looked at.
        running = [] if waiting else self.running
        # vLLM's set of unfinished prefills; it holds started shadows, too.
        any_prefill = len(self._inflight_prefills) > len(self._holding) or any(
            request.request_id not in self._holding for request in self._inflight_prefills
        )
        prefills = [r for r in running if r.is_prefill_chunk] if any_prefill else []
        foreground = self.request_clocks.foreground(running, prefills, budget, now_s, in_flight_s)
        return StepLoad(
            now_s=now_s,
            waiting_requests=waiting,
            admission_blocked=False,  # whoever is blocked by memory waits in vLLM's queue
            busy=foreground.busy,
            carries_routed=foreground.carries_routed,
            min_tpot_s=foreground.min_tpot_s,
            min_slack_s=foreground.min_slack_s,
            planned=foreground.planned,
            free_shadow_tokens=min(free_tokens, budget - foreground.planned.tokens),
            jobs=tuple(map(_job_load, jobs)),
            in_flight_s=in_flight_s,
            in_flight_charge_s=in_flight_charge_s,
        )

    def _spread(self, jobs: list[ShadowRequest], tokens: int, room: KvRoom) -> list[Chunk]:
        chunks: list[Chunk] = []
        for shadow in jobs:
            taken = 0
            if tokens > 0:
                claim = self.shadow_kv.claim(shadow)
                taken = room.take(min(tokens, shadow.missing_tokens), claim)
            if taken <= 0:
                break
            chunks.append(Chunk(shadow, taken))
            tokens -= taken
        return chunks

    def _end_stalled(self, granted_tokens: int, now_s: float) -> None:
        busy = self.running or any(self.get_request_counts()) or self.shadow_kv.pinned
        if granted_tokens or busy or self._in_flight():
            self._stalled_since_s = None
        elif self._stalled_since_s is None:
            self._stalled_since_s = now_s
        elif now_s - self._stalled_since_s > STALL_S:
            for job in self.shadow_queue.ordered():
                self._end(self.shadows[job.request_id].request, ShadowEnd.STALLED)
            self._stalled_since_s = None

    # Unhide and hide

    def _unhide(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            shadow, request = chunk.shadow, chunk.shadow.request
            shadow.visible = True
            self._shown.append(shadow)
            if shadow.started:
                request.step_limit_tokens = request.num_computed_tokens + chunk.tokens
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
        started = sum(shadow.started for shadow in self._shown)
        return running - started, waiting - (len(self._shown) - started)

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        # vLLM decides here whether a chunk was the prompt's last: it must see the real end.
        for shadow in self._shown:
            shadow.request.uncap()
        super()._update_after_schedule(scheduler_output)

    def _hide(self, chunks: list[Chunk], output: SchedulerOutput) -> None:
        if not chunks:
            return
        hidden = {shadow.request for shadow in self._shown}
        # They were appended last and are there still, unless a request was admitted behind them.
        while self.running and self.running[-1] in hidden:
            hidden.discard(self.running.pop())
        if hidden:
            self.running = [request for request in self.running if request not in hidden]
            self.waiting.remove_requests(hidden)
            self.deferred_waiting -= hidden
        for shadow in self._shown:
            shadow.visible = False
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
        return super()._free_request(request, delay_free_blocks)


def _job_load(shadow: ShadowRequest) -> JobLoad:
    missing_tokens = shadow.missing_tokens
    return JobLoad(
        missing_tokens=missing_tokens,
        context_tokens=shadow.request.num_tokens - missing_tokens,
        probability=shadow.marks.switch_probability,
        started=shadow.started,
    )
