"""How long a request waits for shadow work in a real engine: at most one capped iteration.

The engine runs in this process. Requests come at random times from another thread into an inbox,
which is emptied between two iterations, as vLLM's own engine loop does. Times are reported, not
judged: the machine may be shared. What is judged is how many iterations with shadow tokens an
arrival met, and what they were predicted to last."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from engine.marks import Marks
from engine.params import StepTimeStart
from engine.trace import Line, TraceHeader, TraceStep
from policy.vocabulary import RequestClass
from tests.engine.engine_client import an_engine, text_of
from tests.engine.params_of import params

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.vllm_cpu,
    # An engine's start touches deprecated names of torch; none of them is ours.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

ARRIVALS = 120
MEAN_GAP_S = 0.06
CAP_S = 0.5


@dataclass
class Iteration:
    begin_s: float
    end_s: float
    shadow_tokens: int
    first_scheduled: set[str]


@dataclass
class Inbox:
    """Requests on their way into the engine."""

    sent: deque[tuple[str, list[int], float]] = field(default_factory=deque)
    sent_s: dict[str, float] = field(default_factory=dict)
    taken_s: dict[str, float] = field(default_factory=dict)

    def fill(self, chance: random.Random) -> None:
        for index in range(ARRIVALS):
            time.sleep(chance.expovariate(1 / MEAN_GAP_S))
            name = f"n{index}"
            self.sent_s[name] = time.time()
            ids = text_of(chance.randrange(8, 120), seed=1000 + index)
            self.sent.append((name, ids, self.sent_s[name]))


@pytest.fixture
def traced_engine(tmp_path: Path) -> Iterator[tuple[Any, Path]]:
    trace_path = tmp_path / "trace.jsonl"
    # The coefficients of configs/tiny_colocated.yaml.
    step_time = StepTimeStart(
        fixed_s=0.01, s_per_request=0.0005, s_per_token=2e-5, s_per_token_context=1e-8
    )
    engine_params = params(
        slo_ttft_s=10.0,
        slo_tpot_s=1.0,
        beta=0.5,
        iteration_cap_s=CAP_S,
        max_chunk_tokens=512,
        n_min_tokens=32,
        kv_cap_share=0.5,
        shadow_timeout_s=600.0,
        step_time=step_time,
        trace_path=str(trace_path),
    )
    for llm in an_engine(engine_params=engine_params, max_model_len=8192, max_num_seqs=16):
        yield llm.llm_engine, trace_path


def send(
    engine: Any, name: str, ids: list[int], marks: Marks, max_tokens: int, **extra: Any
) -> None:
    from vllm import SamplingParams

    sampling = SamplingParams(
        temperature=0, max_tokens=max_tokens, ignore_eos=True, extra_args=dict(marks.to_xargs())
    )
    engine.add_request(name, {"prompt_token_ids": ids}, sampling, **extra)


class Loop:
    """The engine's loop, and what each iteration carried."""

    def __init__(self, engine: Any, inbox: Inbox) -> None:
        self.engine, self.inbox = engine, inbox
        self.iterations: list[Iteration] = []
        self.finished: dict[str, list[int]] = {}
        self.jobs = 0
        self._scheduler = engine.engine_core.engine_core.scheduler
        self._seen: set[str] = set()
        self._scheduled: dict[str, int] = {}
        self._schedule: Callable[..., Any] = self._scheduler.schedule
        self._scheduler.schedule = self._watched_schedule

    def run(self, sender: threading.Thread) -> None:
        while sender.is_alive() or self.inbox.sent or set(self.inbox.sent_s) - set(self.finished):
            self._take_inbox()
            self._keep_a_job_waiting()
            self._iterate()

    def _iterate(self) -> None:
        begin_s = time.time()
        for output in self.engine.step():
            if output.finished:
                self.finished[output.request_id] = list(output.outputs[0].token_ids)
        scheduled = {_bare(name): tokens for name, tokens in self._scheduled.items()}
        self.iterations.append(
            Iteration(
                begin_s=begin_s,
                end_s=time.time(),
                shadow_tokens=sum(n for name, n in scheduled.items() if name.startswith("x")),
                first_scheduled=scheduled.keys() - self._seen,
            )
        )
        self._seen |= scheduled.keys()

    def _take_inbox(self) -> None:
        while self.inbox.sent:
            name, ids, sent_s = self.inbox.sent.popleft()
            self.inbox.taken_s[name] = time.time()
            send(self.engine, name, ids, Marks(), max_tokens=4, arrival_time=sent_s)

    def _keep_a_job_waiting(self) -> None:
        if len(self._scheduler.shadow_queue) < 2:
            marks = Marks(request_class=RequestClass.SHADOW, session_id=f"s{self.jobs}")
            send(self.engine, f"x{self.jobs}", text_of(6000, seed=self.jobs), marks, max_tokens=1)
            self.jobs += 1

    def _watched_schedule(self, *args: Any, **kwargs: Any) -> Any:
        output = self._schedule(*args, **kwargs)
        self._scheduled = dict(output.num_scheduled_tokens)
        return output


def _bare(name: str) -> str:
    """vLLM appends a random suffix to the names of requests."""
    return name.partition("-")[0]


def test_an_arrival_waits_for_at_most_one_iteration_with_shadow_tokens(
    traced_engine: tuple[Any, Path], record_property: Any
) -> None:
    engine, trace_path = traced_engine
    inbox = Inbox()
    loop = Loop(engine, inbox)
    sender = threading.Thread(target=inbox.fill, args=(random.Random(5),))
    sender.start()
    loop.run(sender)
    sender.join()
    loop.engine.engine_core.shutdown()

    waits = [_wait_of(name, loop) for name in inbox.sent_s]
    met = [shadow_iterations for _wait_s, shadow_iterations in waits]
    assert max(met) <= 1
    behind_shadow = sorted(wait_s for wait_s, shadow_iterations in waits if shadow_iterations)
    assert len(behind_shadow) > 10, "the test load hardly met shadow work"
    assert all(len(answer) == 4 for name, answer in loop.finished.items() if name[0] == "n")

    header, steps = _read(trace_path)
    carrying = [step for step in steps if step.shadow_tokens]
    for step in carrying:
        assert step.predicted_s <= step.budget_s + 1e-6, step
        assert step.budget_s <= header.idle_cap_s, step
        assert not step.waiting_requests, step
    report = {
        "arrivals": len(waits),
        "arrivals_behind_shadow": len(behind_shadow),
        "cap_s": header.idle_cap_s,
        "max_wait_s": round(behind_shadow[-1], 4),
        "p99_wait_s": round(statistics.quantiles(behind_shadow, n=100, method="inclusive")[98], 4),
        "iterations_with_shadow": len(carrying),
        "over_cap_share": round(
            sum(step.step_s > header.idle_cap_s for step in carrying) / len(carrying), 4
        ),
    }
    for name, value in report.items():
        record_property(name, value)
    print(report)  # noqa: T201


def _wait_of(name: str, loop: Loop) -> tuple[float, int]:
    """From its sending until the engine took it, and the iterations with shadow tokens that it met
    until the one that first carried it."""
    sent_s = loop.inbox.sent_s[name]
    met = 0
    for iteration in loop.iterations:
        if iteration.end_s > sent_s and iteration.shadow_tokens:
            met += 1
        if name in iteration.first_scheduled:
            break
    return loop.inbox.taken_s[name] - sent_s, met


def _read(path: Path) -> tuple[TraceHeader, list[TraceStep]]:
    lines = [msgspec.json.decode(line, type=Line) for line in path.read_bytes().splitlines()]
    header = lines[0]
    assert isinstance(header, TraceHeader)
    return header, [line for line in lines if isinstance(line, TraceStep)]
