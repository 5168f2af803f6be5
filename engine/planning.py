"""What the step that is being built carries of shadow work: which shadows, how many tokens.

Reads vLLM's queues, asks policy.slack, and keeps within the KV room; changes nothing of the step
yet. A job that can get no room ends here, or others give way to it.

Host: engine.restore."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from vllm.v1.core.sched.interface import PauseState

from engine.adapters import AdapterPlaces
from engine.kv_room import LOOK_UP_INTERVAL_S
from engine.reclaim import ShadowBlocks
from engine.request_clocks import RequestClocks
from engine.shadow_requests import NEVER_S, ShadowEnd, ShadowRequest
from engine.timing import EngineClock
from policy.kv_class import Shortage
from policy.slack import JobLoad, SlackController, SlackGrant, SlackReason, StepLoad

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engine.kv_room import KvRoom

JOBS_PER_STEP = 4
NO_GRANT = SlackGrant(0, SlackReason.NO_JOB)
STALL_S = 2.0
"""An engine with nothing else to do that grants nothing for so long never will, and vLLM's loop
polls while anything is unfinished."""


class Chunk(NamedTuple):
    """Tokens of one shadow request in the step that is being built."""

    shadow: ShadowRequest
    tokens: int


class Plan(NamedTuple):
    """What the step that is being built may carry of shadow work, and why."""

    chunks: list[Chunk]
    grant: SlackGrant
    waiting_requests: int


class ShadowPlanner(ShadowBlocks):
    """Shadow requests that are computed on this instance."""

    def _prepare(self) -> None:
        super()._prepare()
        self.slack = SlackController(
            self.params.slack_params(), step_tokens=self.max_num_scheduled_tokens
        )
        self.step_time = self.params.step_time_model()
        self.request_clocks = RequestClocks(
            self.slack,
            self.step_time,
            chunk_tokens=self.max_num_scheduled_tokens,
            decode_tokens=1 + self.num_spec_tokens,
        )
        self.engine_clock = EngineClock(self.slack, self.step_time, self.request_clocks)
        self._stalled_since_s: float | None = None

    def _plan(self, now_s: float) -> Plan:
        if self.shadows:
            self._expire(now_s)
            self._yield_slots()
        waiting = self.get_request_counts()[1] - self.num_waiting_for_streaming_input
        if not self.shadow_queue or self._pause_state != PauseState.UNPAUSED:
            return Plan([], NO_GRANT, waiting)
        load = self._step_load(now_s, waiting)
        # Most steps of a busy engine end here, and then no job and no KV is looked at.
        refusal = self.slack.refusal(load, self.step_time)
        if refusal is not None:
            self.shadow_stats.count_grant(refusal.reason.value)
            self._stalled_since_s = None
            return Plan([], refusal, waiting)
        started = self._started()
        room = self.shadow_kv.room(started, len(self.running), now_s)
        runnable = self._runnable(now_s, len(started))
        jobs, free_tokens = self._first_that_fits(now_s, runnable, room)
        load = load._replace(
            free_shadow_tokens=min(free_tokens, load.free_shadow_tokens),
            jobs=tuple(map(_job_load, jobs)),
        )
        grant = self.slack.grant(load, self.step_time)
        self.shadow_stats.count_grant(grant.reason.value)
        self._end_stalled(grant.tokens, now_s)
        return Plan(self._spread(jobs, grant.tokens, room), grant, waiting)

    def _runnable(self, now_s: float, started_jobs: int) -> Iterator[ShadowRequest]:
        """The next jobs, in the order of the queue, of which a token could be scheduled now."""
        jobs = 0
        adapters = AdapterPlaces(self.lora_config, self.running)
        spare_slots = self.max_num_running_reqs - len(self.running) - started_jobs
        spare_slots -= self.num_waiting_for_streaming_input  # they keep theirs
        for job in self.shadow_queue.ordered():
            shadow = self.shadows[job.request_id]
            if shadow.visible or shadow.request.num_stale_output_tokens > 0:
                continue  # it is being loaded, or was preempted out of a step still in flight
            if (not shadow.started and spare_slots <= 0) or not adapters.take(shadow.request):
                continue
            if not shadow.started:
                spare_slots -= 1
                if shadow.looked_up_s == NEVER_S:
                    self.shadow_kv.look_up(shadow, now_s)
            yield shadow
            jobs += 1
            if jobs == JOBS_PER_STEP:
                return

    def _first_that_fits(
        self, now_s: float, jobs: Iterator[ShadowRequest], room: KvRoom
    ) -> tuple[list[ShadowRequest], int]:
        """The first job whose next chunk fits, the room that it has, and jobs behind it if it is
        too short for a step."""
        tried: list[ShadowRequest] = []
        for shadow in jobs:
            tokens = self._room_for(shadow, room)
            stale = not shadow.started and now_s - shadow.looked_up_s > LOOK_UP_INTERVAL_S
            if not tokens and stale:
                self.shadow_kv.look_up(shadow, now_s)
                tokens = self._room_for(shadow, room)
            if tokens:
                return self._enough_for_a_step(shadow, jobs), tokens
            tried.append(shadow)
        if tried:
            self._make_room(tried, room)
        return tried[:1], 0

    def _enough_for_a_step(
        self, first: ShadowRequest, later: Iterator[ShadowRequest]
    ) -> list[ShadowRequest]:
        jobs, missing_tokens = [first], first.missing_tokens
        while missing_tokens < self.max_num_scheduled_tokens:
            shadow = next(later, None)
            if shadow is None:
                break
            jobs.append(shadow)
            missing_tokens += shadow.missing_tokens
        return jobs

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

    def _step_load(self, now_s: float, waiting: int) -> StepLoad:
        """Of whatever job: with none in it yet, and all that vLLM could still schedule as room."""
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
            free_shadow_tokens=budget - foreground.planned.tokens,
            jobs=(),
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


def _job_load(shadow: ShadowRequest) -> JobLoad:
    missing_tokens = shadow.missing_tokens
    return JobLoad(
        missing_tokens=missing_tokens,
        context_tokens=shadow.request.num_tokens - missing_tokens,
        probability=shadow.marks.switch_probability,
        started=shadow.started,
    )
