"""Plays a script of traffic to a scheduler, as vLLM's engine loop would, and watches every step.

Only vLLM's own interface drives it, so the same script runs on vLLM's own scheduler (the world
without shadow work) and on ours. A step lasts as long as its batch says, on a clock of its own; the
worker executes one step at a time."""

from __future__ import annotations

import random
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm import SamplingParams
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.request import Request, RequestStatus

from engine.fake_runner import block_hasher
from engine.marks import Marks
from policy.step_time import attended
from policy.vocabulary import RequestClass
from tests.engine.kv_runner import KvRunner
from tests.engine.traffic import Arrival, Event, Leave, Pause, Reset

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.engine import EngineCoreOutput
    from vllm.v1.outputs import ModelRunnerOutput

    from engine.params import StepTimeStart

BLOCK = 16
IDLE_S = 0.01
"""An engine with nothing to do looks again after this."""
_hasher = block_hasher(BLOCK)


@dataclass(kw_only=True)
class Load:
    """Of a step, in the units of the latency form."""

    requests: int = 0
    tokens: int = 0
    pairs: float = 0.0

    def add(self, tokens: int, context_tokens: int) -> None:
        self.requests += 1
        self.tokens += tokens
        self.pairs += attended(tokens, context_tokens)

    def duration_s(self, start: StepTimeStart) -> float:
        if not self.requests:
            return 0.0
        return (
            start.fixed_s
            + start.s_per_request * self.requests
            + start.s_per_token * self.tokens
            + start.s_per_token_context * self.pairs
        )


@dataclass(kw_only=True)
class Step:
    """One iteration, as an observer outside the engine saw it."""

    scheduled: dict[str, int]
    foreground: dict[str, int]
    shadow_tokens: int
    preempted: list[str]
    """Foreground requests."""
    waiting_before: int
    waiting_after: int
    held_by_shadows: int
    """KV blocks in use by unfinished shadow requests after it was built."""
    carries_routed: bool
    decode_only: bool
    base_s: float
    """What it lasts without its shadow tokens, and with them; both without noise."""
    arrival_wait_s: float = 0.0
    """Of a request that comes right after it was built: until this step has come back."""
    whole_s: float


@dataclass
class Played:
    """One scheduler, its worker and its clock."""

    scheduler: Any
    arrivals: dict[str, Arrival]
    step_time: StepTimeStart
    depth: int
    blocks: int
    noise: float = 0.0
    seed: int = 0
    now_s: float = 1000.0
    finished: dict[str, EngineCoreOutput] = field(default_factory=dict)
    answers: dict[str, list[int]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    watch: list[Callable[[Played, SchedulerOutput], None]] = field(default_factory=list)
    """Called after each step was built."""
    arrived: list[Callable[[Played, Arrival], None]] = field(default_factory=list)
    before: list[Callable[[Played], None]] = field(default_factory=list)
    """Called before each step is built."""
    runner: Any = None
    """A KvRunner; unset: one that copies nothing anywhere."""

    def __post_init__(self) -> None:
        self.scheduler.clock = lambda: self.now_s
        self._chance = random.Random(self.seed)
        if self.runner is None:
            self.runner = KvRunner(self.blocks, BLOCK, asynchronous=self.depth > 1)
        self._in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput, float]] = deque()
        self._worker_free_s = self.now_s

    def play(self, script: list[list[Event]]) -> None:
        for events in script:
            for event in events:
                self._happens(event)
            self.step()

    def finish(self, limit: int = 6000) -> None:
        self.scheduler.set_pause_state(PauseState.UNPAUSED)
        for _ in range(limit):
            if not self.scheduler.has_requests() and not self._in_flight:
                return
            self.step()
        raise AssertionError(f"still busy after {limit} steps: {list(self.scheduler.requests)}")

    def step(self) -> None:
        for watcher in self.before:
            watcher(self)
        preemptions = self._preemptions()
        waiting = self.waiting()
        output = self.scheduler.schedule()
        result = self.runner.execute(output)
        step = self._seen(output, waiting, preemptions)
        self.steps.append(step)
        self._worker_free_s = max(self._worker_free_s, self.now_s) + self._lasts(step.whole_s)
        step.arrival_wait_s = self._worker_free_s - self.now_s
        self._in_flight.append((output, result, self._worker_free_s))
        for watcher in self.watch:
            watcher(self, output)
        if not output.num_scheduled_tokens and len(self._in_flight) == 1:
            self.now_s += IDLE_S
        while len(self._in_flight) >= self.depth or (
            self._in_flight and not output.num_scheduled_tokens
        ):
            self._bring_back()

    def waiting(self) -> int:
        waiting: int = self.scheduler.get_request_counts()[1]
        return waiting

    def free_blocks(self) -> int:
        free: int = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return free

    def is_shadow(self, name: str) -> bool:
        return self.arrivals[name].request_class is RequestClass.SHADOW

    def _happens(self, event: Event) -> None:
        scheduler = self.scheduler
        if isinstance(event, Arrival):
            scheduler.add_request(self._request(event))
            for watcher in self.arrived:
                watcher(self, event)
        elif isinstance(event, Leave):
            scheduler.finish_requests(event.name, RequestStatus.FINISHED_ABORTED)
        elif isinstance(event, Reset):
            scheduler.reset_prefix_cache(reset_running_requests=event.preempt_running)
        elif isinstance(event, Pause):
            scheduler.set_pause_state(PauseState[event.state])

    def _request(self, arrival: Arrival) -> Request:
        marks = Marks(
            request_class=arrival.request_class,
            session_id=arrival.session,
            switch_probability=arrival.probability,
        )
        return Request(
            arrival.name,
            list(arrival.prompt),
            SamplingParams(
                max_tokens=arrival.max_tokens, ignore_eos=True, extra_args=dict(marks.to_xargs())
            ),
            None,
            # In the future of the wall clock: no transit in the inbox, the run is repeatable.
            arrival_time=time.time() + 3600,
            block_hasher=_hasher,
        )

    def _preemptions(self) -> dict[str, int]:
        return {
            name: request.num_preemptions
            for name, request in self.scheduler.requests.items()
            if not self.is_shadow(name)
        }

    def _seen(self, output: SchedulerOutput, waiting: int, preemptions: dict[str, int]) -> Step:
        scheduled = dict(output.num_scheduled_tokens)
        base, whole = Load(), Load()
        for name, tokens in scheduled.items():
            context_tokens = self.runner.start_of(name)
            whole.add(tokens, context_tokens)
            if not self.is_shadow(name):
                base.add(tokens, context_tokens)
        foreground = {name: n for name, n in scheduled.items() if not self.is_shadow(name)}
        return Step(
            scheduled=scheduled,
            foreground=foreground,
            shadow_tokens=whole.tokens - base.tokens,
            preempted=[
                name
                for name, count in self._preemptions().items()
                if count > preemptions.get(name, 0)
            ],
            waiting_before=waiting,
            waiting_after=self.waiting(),
            held_by_shadows=sum(len(self.blocks_of(name)) for name in self._unfinished_shadows()),
            carries_routed=any(
                self.arrivals[name].request_class is RequestClass.ROUTED for name in foreground
            ),
            decode_only=all(
                self.runner.start_of(name) >= len(self.arrivals[name].prompt) for name in foreground
            ),
            base_s=base.duration_s(self.step_time),
            whole_s=whole.duration_s(self.step_time),
        )

    def blocks_of(self, name: str) -> list[int]:
        blocks: list[int] = self.scheduler.kv_cache_manager.get_block_ids(name)[0]
        return blocks

    def _unfinished_shadows(self) -> list[str]:
        return [name for name in self.scheduler.requests if self.is_shadow(name)]

    def _lasts(self, duration_s: float) -> float:
        return duration_s * self._chance.lognormvariate(0, self.noise)

    def _bring_back(self) -> None:
        output, result, end_s = self._in_flight.popleft()
        self.now_s = max(self.now_s, end_s)
        for client in self.scheduler.update_from_output(output, result).values():
            for answer in client.outputs:
                self.answers.setdefault(answer.request_id, []).extend(answer.new_token_ids)
                if answer.finish_reason is not None:
                    assert answer.request_id not in self.finished, "answered twice"
                    self.finished[answer.request_id] = answer
