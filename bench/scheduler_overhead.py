"""What the scheduler plug-in costs per iteration: vLLM's own scheduler beside ours, the same
requests in both, in alternating blocks of steps so that noise of the machine hits both alike.

    python -m bench.scheduler_overhead --save-result --result-dir out/bench [--smoke]

An iteration is `schedule` + `update_from_output` + its share of `add_request` (of requests that
give OUTPUT_TOKENS tokens each). No model runs: its answers are played, so the times are the
schedulers' own. A shadow chunk in the step also costs vLLM one more request; the rows `refused`
show the plug-in without it, where the controller computes a budget and finds it too short."""

from __future__ import annotations

import argparse
import json
import logging
import os
import pickle
import statistics
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.marks import Marks
from engine.params import EngineParams, StepTimeStart
from policy.vocabulary import Controller, RequestClass, Role

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK = 16
MAX_MODEL_LEN = 65_536
PROMPT_TOKENS = 64
OUTPUT_TOKENS = 128
"""Of a request, for its share of `add_request`; in the runs themselves none ends."""
CHUNK_TOKENS = 16
STEPS_IN_TURN = 10
WARM_UP_STEPS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Decoding requests, and jobs of which the first has most of its prefix computed."""

    running: int
    shadow_jobs: int
    prefix_tokens: int
    asynchronous: bool
    chunk: str
    """`granted`: one in every step. `refused`: the deadlines leave no time. `none`: no jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Case):
    """Times of a whole iteration."""

    steps: int
    plain_us_p50: float
    plugin_us_p50: float
    added_us_p50: float
    plain_us_p99: float
    plugin_us_p99: float
    plain_add_request_us: float
    """Of these, the iteration's share of `add_request`."""
    plugin_add_request_us: float
    plain_message_bytes: int
    """Pickled SchedulerOutput, which goes to every worker."""
    plugin_message_bytes: int
    shadow_tokens: int


def main(argv: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(argv)
    steps = 40 if options.smoke else 300
    rows = []
    for case in cases(smoke=options.smoke):
        rows.append(measure(case, options.model, steps))
        print(_line(rows[-1]), flush=True)  # noqa: T201 (a command's output)
    if options.save_result:
        path = Path(options.result_dir) / "scheduler_overhead.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        load = [round(average, 2) for average in os.getloadavg()]
        result = {"load_average": load, "rows": [asdict(row) for row in rows]}
        path.write_text(json.dumps(result, indent=2) + "\n")


def cases(*, smoke: bool) -> list[Case]:
    sizes = (1, 8) if smoke else (1, 64, 256)
    prefixes = (2_000,) if smoke else (8_000, 60_000)
    job_counts = (1, 4) if smoke else (1, 64)
    kinds = [(0, 0, "none")]
    kinds += [(jobs, prefix, "granted") for jobs in job_counts for prefix in prefixes]
    kinds.append((job_counts[-1], prefixes[-1], "refused"))
    return [
        Case(
            running=size,
            shadow_jobs=jobs,
            prefix_tokens=prefix,
            asynchronous=asynchronous,
            chunk=chunk,
        )
        for asynchronous in (False, True)
        for size in sizes
        for jobs, prefix, chunk in kinds
    ]


@dataclass(slots=True)
class Side:
    """One scheduler and what its steps took."""

    scheduler: Any
    depth: int
    runner: Any
    in_flight: deque[Any] = field(default_factory=deque)
    steps_s: list[float] = field(default_factory=list)
    adds_s: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    shadow_tokens: int = 0

    def add(self, request: Any) -> None:
        started_s = time.perf_counter()
        self.scheduler.add_request(request)
        self.adds_s.append(time.perf_counter() - started_s)

    def step(self, *, counted: bool) -> None:
        """Build one, bring the oldest one back."""
        started_s = time.perf_counter()
        output = self.scheduler.schedule()
        step_s = time.perf_counter() - started_s
        self.in_flight.append(output)
        if len(self.in_flight) >= self.depth:
            oldest = self.in_flight.popleft()
            answer = self.runner.answer(oldest)
            started_s = time.perf_counter()
            self.scheduler.update_from_output(oldest, answer)
            step_s += time.perf_counter() - started_s
        if counted:
            self.steps_s.append(step_s)
            self.bytes.append(len(pickle.dumps(output)))
            scheduled = output.num_scheduled_tokens.items()
            self.shadow_tokens += sum(n for name, n in scheduled if name.startswith("shadow"))

    def add_request_s(self, running: int) -> float:
        """Share of one iteration, if the running requests come and go."""
        return statistics.median(self.adds_s) * running / OUTPUT_TOKENS


def measure(case: Case, model: str, steps: int) -> Row:
    plain, plugin = (_side(case, model, steps, plugin=plugin) for plugin in (False, True))
    _begin_jobs(plugin, case, steps)
    for side in (plain, plugin):
        for index in range(case.running):
            request = _request(f"n{index}", index, PROMPT_TOKENS, 4 * steps + 1000)
            side.add(request)
        for _ in range(_warm_up_steps(case)):
            side.step(counted=False)
    for _ in range(steps // STEPS_IN_TURN):
        for side in (plain, plugin):
            for _ in range(STEPS_IN_TURN):
                side.step(counted=True)
    add_plain_s, add_plugin_s = (s.add_request_s(case.running) for s in (plain, plugin))
    plain_s = statistics.median(plain.steps_s) + add_plain_s
    plugin_s = statistics.median(plugin.steps_s) + add_plugin_s
    return Row(
        **asdict(case),
        steps=len(plain.steps_s),
        plain_us_p50=_us(plain_s),
        plugin_us_p50=_us(plugin_s),
        added_us_p50=_us(plugin_s - plain_s),
        plain_us_p99=_us(_p99(plain.steps_s) + add_plain_s),
        plugin_us_p99=_us(_p99(plugin.steps_s) + add_plugin_s),
        plain_add_request_us=_us(add_plain_s),
        plugin_add_request_us=_us(add_plugin_s),
        plain_message_bytes=int(statistics.median(plain.bytes)),
        plugin_message_bytes=int(statistics.median(plugin.bytes)),
        shadow_tokens=plugin.shadow_tokens,
    )


def _side(case: Case, model: str, steps: int, *, plugin: bool) -> Side:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    from colocated.scheduler import ColocatedScheduler
    from engine.fake_runner import FakeRunner, build_scheduler

    stock = AsyncScheduler if case.asynchronous else Scheduler
    tokens = case.running * (PROMPT_TOKENS + 4 * steps + 1000) + 2 * case.prefix_tokens
    scheduler = build_scheduler(
        ColocatedScheduler if plugin else stock,
        asynchronous=case.asynchronous,
        blocks=tokens // BLOCK + case.running + 1000,
        block_size=BLOCK,
        model=model,
        hf_overrides={"max_position_embeddings": MAX_MODEL_LEN},
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=2048,
        max_num_seqs=case.running + 8,
        additional_config={"shadowprefill": _params(case).to_object()},
    )
    return Side(scheduler, 2 if case.asynchronous else 1, FakeRunner())


def _begin_jobs(side: Side, case: Case, steps: int) -> None:
    """An idle engine computes the first job's prefix, all but what the steps to come need."""
    names = [f"shadow{index}" for index in range(case.shadow_jobs)]
    for index, name in enumerate(names):
        seed = case.running + index
        side.scheduler.add_request(_request(name, seed, case.prefix_tokens, 1, RequestClass.SHADOW))
    if not names or case.chunk != "granted":
        return
    scheduler = side.scheduler
    rest_tokens = (steps + _warm_up_steps(case) + STEPS_IN_TURN) * CHUNK_TOKENS
    step_tokens = scheduler.max_num_scheduled_tokens
    while scheduler.shadows[names[0]].missing_tokens > rest_tokens:
        # An idle engine's chunks grow; the last one must not take what the steps to come need.
        spare_tokens = scheduler.shadows[names[0]].missing_tokens - rest_tokens
        scheduler.max_num_scheduled_tokens = min(step_tokens, max(BLOCK, spare_tokens))
        side.step(counted=False)
    scheduler.max_num_scheduled_tokens = step_tokens


def _warm_up_steps(case: Case) -> int:
    return WARM_UP_STEPS + case.running // 8  # 2,048 tokens of prompts in a step


def _params(case: Case) -> EngineParams:
    """The controller's worst case. `granted`: next to the whole of a huge SLO is margin, so that
    the deadlines bind, and are looked through, in every step, and still leave time for a chunk.
    `refused`: they bind and leave none."""
    refused = case.chunk == "refused"
    return EngineParams(
        instance="bench",
        model="bench",
        role=Role.COLOCATED,
        slo_ttft_s=1e6,
        slo_tpot_s=1e-6 if refused else 1e6,
        controller=Controller.HARVEST_SLO,
        beta=1.0,
        delta=0.025,
        margin=0.1 if refused else 0.999_999,
        n_min_tokens=CHUNK_TOKENS,
        iteration_cap_s=3600.0,
        max_chunk_tokens=CHUNK_TOKENS,
        segment_tokens=MAX_MODEL_LEN,
        kv_cap_share=1.0,
        idle_age_s=0.0,
        min_switch_probability=0.0,
        shadow_timeout_s=1e6,
        pull_timeout_s=1e6,
        step_time=StepTimeStart(
            fixed_s=1e-3, s_per_request=0.0, s_per_token=1e-6, s_per_token_context=0.0
        ),
    )


def _request(
    name: str,
    seed: int,
    tokens: int,
    max_tokens: int,
    request_class: RequestClass = RequestClass.NORMAL,
) -> Any:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    from engine.fake_runner import block_hasher

    marks = Marks(request_class=request_class, session_id=name)
    sampling = SamplingParams(
        max_tokens=max_tokens, ignore_eos=True, extra_args=dict(marks.to_xargs())
    )
    ids = [seed * MAX_MODEL_LEN + position for position in range(tokens)]
    return Request(name, ids, sampling, None, block_hasher=block_hasher(BLOCK))


def _us(seconds: float) -> float:
    return round(1e6 * seconds, 1)


def _p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]


def _line(row: Row) -> str:
    return (
        f"{'async' if row.asynchronous else 'sync':5} running {row.running:3}  "
        f"jobs {row.shadow_jobs:2} x {row.prefix_tokens:5}  {row.chunk:7}  "
        f"plain {row.plain_us_p50:7.1f} us  plug-in {row.plugin_us_p50:7.1f} us  "
        f"added {row.added_us_p50:6.1f} us  p99 {row.plain_us_p99:7.1f} {row.plugin_us_p99:7.1f}  "
        f"message {row.plain_message_bytes} {row.plugin_message_bytes} B"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default=".models/tiny-a", help="a folder with a config.json")
    parser.add_argument("--smoke", action="store_true", help="a few steps, to see that it runs")
    parser.add_argument("--save-result", action="store_true")
    parser.add_argument("--result-dir", default="out/bench")
    return parser


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # vLLM's, which would hide the table
    main()
