"""vLLM's real schedulers with fake model output: builders for the tests of the plug-in.

Not shown by these: what a model runner does with such steps (test_scheduler_engine.py)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm import SamplingParams
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request

from engine.fake_runner import FakeRunner, block_hasher, build_scheduler
from engine.marks import Marks
from engine.scheduler import ShadowScheduler
from policy.step_time import Batch, StepTimeModel
from policy.vocabulary import RequestClass
from tests.engine.params_of import params as params

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.engine import EngineCoreOutput

    from engine.intake import ShadowIntake
    from engine.params import EngineParams

MODEL = Path(__file__).parents[2] / ".models" / "tiny-a"
BLOCK = 16
ROOMY_BLOCKS = 2000


def scheduler_of(
    scheduler_class: type[ShadowIntake],
    scheduler_params: EngineParams,
    *,
    asynchronous: bool = False,
    blocks: int = ROOMY_BLOCKS,
    **engine_args: Any,
) -> Any:
    """Its latency model learns nothing: a step carries `max_chunk_tokens`, also an idle one."""
    arguments: dict[str, Any] = {
        "model": str(MODEL),
        "max_model_len": 4096,
        "max_num_batched_tokens": 512,
        "max_num_seqs": 8,
        "additional_config": {"shadowprefill": scheduler_params.to_object()},
    }
    scheduler = build_scheduler(
        scheduler_class,
        asynchronous=asynchronous,
        blocks=blocks,
        block_size=BLOCK,
        **(arguments | engine_args),
    )
    if isinstance(scheduler, ShadowScheduler):
        scheduler.step_time.__class__ = UnteachableModel
        scheduler.step_time.trusted_tokens = scheduler_params.max_chunk_tokens
    return scheduler


class UnteachableModel(StepTimeModel):
    """An existing model becomes one by assignment of its class."""

    __slots__ = ()

    def observe(self, step_s: float, batch: Batch) -> None:
        pass


_hasher = block_hasher(BLOCK)


def a_request(
    name: str, tokens: list[int], marks: Marks | None = None, max_tokens: int = 1, **extra: Any
) -> Request:
    extra_args: dict[str, Any] = {**(marks.to_xargs() if marks else {}), **extra}
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, extra_args=extra_args)
    return Request(name, tokens, sampling, None, block_hasher=_hasher)


def prompt(tokens: int, seed: int = 0) -> list[int]:
    """Two seeds share no block."""
    return [seed * 100_000 + position for position in range(tokens)]


def shadow(
    name: str, tokens: int | list[int], session: str = "", probability: float = 1.0, **extra: Any
) -> Request:
    marks = Marks(
        request_class=RequestClass.SHADOW, session_id=session, switch_probability=probability
    )
    ids = tokens if isinstance(tokens, list) else prompt(tokens, seed=_seed(name))
    return a_request(name, ids, marks, **extra)


def routed(name: str, tokens: int | list[int], session: str, max_tokens: int = 1) -> Request:
    marks = Marks(request_class=RequestClass.ROUTED, session_id=session)
    ids = tokens if isinstance(tokens, list) else prompt(tokens, seed=_seed(name))
    return a_request(name, ids, marks, max_tokens)


def normal(name: str, tokens: int | list[int], max_tokens: int = 1) -> Request:
    ids = tokens if isinstance(tokens, list) else prompt(tokens, seed=_seed(name))
    return a_request(name, ids, None, max_tokens)


def _seed(name: str) -> int:
    return sum(ord(letter) * (31**place) for place, letter in enumerate(name)) % 20_000 + 1


@dataclass
class World:
    """Steps one scheduler as vLLM's engine loop does: one batch in flight, or two."""

    scheduler: Any
    depth: int = 1
    now_s: float = 1000.0
    step_s: float = 0.01
    finished: dict[str, EngineCoreOutput] = field(default_factory=dict)
    emitted: dict[str, int] = field(default_factory=dict)
    received: set[str] = field(default_factory=set)
    """Pulls that the next step to come back reports as done."""
    failed: set[str] = field(default_factory=set)
    """Those of them that failed."""
    sent: set[str] = field(default_factory=set)
    """Hand-offs that the next step to come back reports as read by the other side."""
    _in_flight: deque[SchedulerOutput] = field(default_factory=deque)
    _runner: FakeRunner = field(default_factory=FakeRunner)

    def __post_init__(self) -> None:
        self.scheduler.clock = lambda: self.now_s

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add_request(request)

    def step(self) -> dict[str, int]:
        """Build a step, bring the oldest one back; answers what was scheduled."""
        output = self.scheduler.schedule()
        self.check()
        self._in_flight.append(output)
        self.now_s += self.step_s
        while len(self._in_flight) >= self.depth or (
            self._in_flight and not output.num_scheduled_tokens
        ):
            self._bring_back()
        return dict(output.num_scheduled_tokens)

    def run(self, limit: int = 2000) -> int:
        """Until nothing is left; answers the number of steps."""
        for steps in range(limit):
            if not self.scheduler.has_requests() and not self._in_flight:
                return steps
            self.step()
        raise AssertionError(f"still busy after {limit} steps: {list(self.scheduler.requests)}")

    def free_blocks(self) -> int:
        free: int = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return free

    def check(self) -> None:
        """What must hold between any two steps."""
        scheduler = self.scheduler
        scheduler.shadow_queue.check()
        hidden = {shadow.request for shadow in scheduler.shadows.values() if not shadow.visible}
        assert not hidden & set(scheduler.running)
        assert not hidden & set(scheduler.waiting)
        assert not hidden & scheduler.deferred_waiting
        if isinstance(scheduler, ShadowScheduler):
            started = [shadow for shadow in scheduler.shadows.values() if shadow.started]
            assert {id(shadow) for shadow in scheduler._started()} == set(map(id, started))
        for shadow in scheduler.shadows.values():
            assert shadow.request.step_limit_tokens is None, shadow
            assert shadow.request.step_tokens is None, shadow
            assert shadow.request.request_id in scheduler.requests

    def _bring_back(self) -> None:
        output = self._in_flight.popleft()
        answers = self.scheduler.update_from_output(output, self._model_output(output))
        for client in answers.values():
            for answer in client.outputs:
                tokens = self.emitted.get(answer.request_id, 0) + len(answer.new_token_ids)
                self.emitted[answer.request_id] = tokens
                if answer.finish_reason is not None:
                    assert answer.request_id not in self.finished, "answered twice"
                    self.finished[answer.request_id] = answer

    def _model_output(self, output: SchedulerOutput) -> ModelRunnerOutput:
        transfers = KVConnectorOutput(
            finished_recving=self.received, failed_recving=self.failed, finished_sending=self.sent
        )
        self.received, self.failed, self.sent = set(), set(), set()
        return self._runner.answer(output, transfers if self.scheduler.connector else None)
