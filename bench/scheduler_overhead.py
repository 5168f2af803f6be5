"""What the scheduler plug-in costs per iteration: schedule() and update_from_output() of vLLM's own
scheduler and of ours, with and without shadow work, at several batch sizes.

    python -m bench.scheduler_overhead --save-result --result-dir out/bench [--smoke]

No model runs: its answers are played, so the times are the scheduler's own. The last figure is what
a step's message to the workers weighs."""

from __future__ import annotations

import argparse
import json
import logging
import pickle
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.marks import Marks
from engine.params import EngineParams, StepTimeStart
from policy.vocabulary import Controller, RequestClass, Role

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK = 16
MAX_MODEL_LEN = 8192
SHADOW_TOKENS = 8000
CHUNK_TOKENS = 16
WARM_UP_STEPS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One scheduler at one batch size."""

    variant: str
    running_requests: int
    steps: int
    schedule_ms_p50: float
    schedule_ms_p99: float
    update_ms_p50: float
    output_bytes_p50: int
    shadow_tokens: int


def main(argv: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(argv)
    sizes, steps = ((1, 8), 40) if options.smoke else ((1, 16, 64, 256), 400)
    rows = [
        measure(variant, options.model, size, steps, asynchronous=options.asynchronous)
        for size in sizes
        for variant in ("vllm", "ours", "ours+shadow")
    ]
    for row in rows:
        print(  # noqa: T201 (a command's output)
            f"{row.variant:12} running {row.running_requests:4}  "
            f"schedule p50 {row.schedule_ms_p50:.3f} ms p99 {row.schedule_ms_p99:.3f} ms  "
            f"update p50 {row.update_ms_p50:.3f} ms  message {row.output_bytes_p50} B"
        )
    if options.save_result:
        path = Path(options.result_dir) / "scheduler_overhead.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        result = {"async": options.asynchronous, "rows": [asdict(row) for row in rows]}
        path.write_text(json.dumps(result, indent=2) + "\n")


def measure(variant: str, model: str, size: int, steps: int, *, asynchronous: bool) -> Row:
    """`size` requests that decode, and under `ours+shadow` one long shadow beside them."""
    from engine.fake_runner import FakeRunner

    scheduler = _scheduler(variant, model, size, asynchronous=asynchronous)
    runner = FakeRunner()
    for index in range(size):
        name, output_tokens = f"n{index}", 2 * steps + 1000
        scheduler.add_request(_request(name, index, 64, output_tokens, RequestClass.NORMAL))
    if variant == "ours+shadow":
        scheduler.add_request(_request("shadow", size, SHADOW_TOKENS, 1, RequestClass.SHADOW))
    built_s: list[float] = []
    updated_s: list[float] = []
    sizes_bytes: list[int] = []
    shadow_tokens = 0
    for step in range(WARM_UP_STEPS + size // 4 + steps):
        started_s = time.perf_counter()
        output = scheduler.schedule()
        scheduled_s = time.perf_counter()
        answer = runner.answer(output)
        answered_s = time.perf_counter()
        scheduler.update_from_output(output, answer)
        if step >= WARM_UP_STEPS + size // 4:
            built_s.append(scheduled_s - started_s)
            updated_s.append(time.perf_counter() - answered_s)
            sizes_bytes.append(len(pickle.dumps(output)))
            shadow_tokens += output.num_scheduled_tokens.get("shadow", 0)
    return Row(
        variant=variant,
        running_requests=size,
        steps=steps,
        schedule_ms_p50=1000 * statistics.median(built_s),
        schedule_ms_p99=1000 * sorted(built_s)[int(0.99 * len(built_s))],
        update_ms_p50=1000 * statistics.median(updated_s),
        output_bytes_p50=int(statistics.median(sizes_bytes)),
        shadow_tokens=shadow_tokens,
    )


def _scheduler(variant: str, model: str, size: int, *, asynchronous: bool) -> Any:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    from colocated.scheduler import ColocatedScheduler
    from engine.fake_runner import build_scheduler

    stock = AsyncScheduler if asynchronous else Scheduler
    return build_scheduler(
        stock if variant == "vllm" else ColocatedScheduler,
        asynchronous=asynchronous,
        blocks=(size + 8) * (MAX_MODEL_LEN // BLOCK),
        block_size=BLOCK,
        model=model,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=2048,
        max_num_seqs=size + 8,
        additional_config={"shadowprefill": _params().to_object()},
    )


def _params() -> EngineParams:
    """Budgets that always leave room for one small chunk: the plug-in's worst case."""
    return EngineParams(
        instance="bench",
        model="bench",
        role=Role.COLOCATED,
        slo_ttft_s=1e6,
        slo_tpot_s=1e6,
        controller=Controller.HARVEST_SLO,
        beta=1.0,
        delta=0.025,
        margin=0.1,
        n_min_tokens=CHUNK_TOKENS,
        iteration_cap_s=1e6,
        max_chunk_tokens=CHUNK_TOKENS,
        segment_tokens=SHADOW_TOKENS,
        kv_cap_share=0.9,
        idle_age_s=5.0,
        min_switch_probability=0.0,
        shadow_timeout_s=1e6,
        pull_timeout_s=1e6,
        step_time=StepTimeStart(
            fixed_s=1e-3, s_per_request=0.0, s_per_token=1e-6, s_per_token_context=0.0
        ),
    )


def _request(
    name: str, index: int, tokens: int, max_tokens: int, request_class: RequestClass
) -> Any:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    from engine.fake_runner import block_hasher

    marks = Marks(request_class=request_class, session_id=name)
    sampling = SamplingParams(
        max_tokens=max_tokens, ignore_eos=True, extra_args=dict(marks.to_xargs())
    )
    ids = [index * MAX_MODEL_LEN + position for position in range(tokens)]
    return Request(name, ids, sampling, None, block_hasher=block_hasher(BLOCK))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default=".models/tiny-a", help="a folder with a config.json")
    parser.add_argument("--asynchronous", action="store_true", help="vLLM's async scheduler")
    parser.add_argument("--smoke", action="store_true", help="a few steps, to see that it runs")
    parser.add_argument("--save-result", action="store_true")
    parser.add_argument("--result-dir", default="out/bench")
    return parser


if __name__ == "__main__":
    logging.disable(logging.WARNING)  # vLLM's, which would hide the table
    main()
