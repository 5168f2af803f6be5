"""The demo from top to bottom: READ THIS FIRST.

Starts the cluster (or uses a running one), plays the session four times, prints one table, writes
the files, stops everything. 0 only if every promise of the demo was kept."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp

from bench.demo.budget import ContextPlan
from bench.demo.client import TokenCounter
from bench.demo.cluster import running_cluster
from bench.demo.dtype import without_emulation
from bench.demo.errors import ScriptInvalid
from bench.demo.place import CPUINFO, conditions, float32_models
from bench.demo.progress import Progress
from bench.demo.report import Played, report
from bench.demo.runs import Scenario, Stage, floor, record, replay, warm_up
from bench.demo.script import STEPS, draw_gaps
from bench.demo.summary import Runs
from bench.demo.tools import Toolbox
from configs.load import load_config

if TYPE_CHECKING:
    from rich.console import Console

    from bench.demo.options import Options
    from bench.demo.records import PlannedCall
    from configs.schema import ClusterConfig

REPOSITORY = Path(__file__).parents[2]
TARGET_TOKENS = 6300
"""Length of the last prompt; the window of the demo's models is 8,192 tokens."""
MAX_OUTPUT_TOKENS = 20
CALL_TIMEOUT_S = 180.0


def run_demo(options: Options, console: Console) -> int:
    """Raises DemoError, and whatever the cluster refuses to start with; nothing is left running."""
    progress = Progress(console)
    if options.base_url is None:
        options = _playable(options, progress)
    config = load_config(options.config)
    models = _two_models(config)
    with running_cluster(options, progress) as place:
        seen = conditions(config, place.coordinator_pid)
        for line in seen.lines():
            progress.say(line)
        played = asyncio.run(_play(config, models, place.url, options.seed, progress))
        # Before the cluster stops: whatever happens then, the results are on screen and on disk.
        broken = report(played, seen, progress, options.out, options.config.name)
    progress.say(
        f"files in {options.out}: summary.json, calls.jsonl, session.json, ttft.png, ttft.txt"
    )
    return 1 if broken else 0


def _playable(options: Options, progress: Progress) -> Options:
    config = without_emulation(options.config, options.out, CPUINFO)
    if config != options.config:
        progress.say(
            "this processor emulates bfloat16, about five times slower than float32: "
            "the bfloat16 models run in float32 here, so both models cost the same"
        )
    return replace(options, config=config)


async def _play(
    config: ClusterConfig, models: tuple[str, str], base_url: str, seed: int, progress: Progress
) -> Played:
    timeout = aiohttp.ClientTimeout(total=CALL_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        counter = TokenCounter(http, _front_ends(config))
        stage = Stage(
            http=http, base_url=base_url, counter=counter, models=models, progress=progress
        )
        scenario = Scenario(
            steps=STEPS,
            gaps_s=tuple(draw_gaps(len(STEPS), seed)),
            toolbox=Toolbox(REPOSITORY),
            plan=ContextPlan(target_tokens=TARGET_TOKENS, output_tokens=MAX_OUTPUT_TOKENS),
        )
        with progress.phase("warm_up", "warm-up, not counted"):
            await warm_up(stage)
        with progress.phase("off", "run 1, shadow off, recorded"):
            planned, off = await record(stage, scenario)
        with progress.phase("on", "run 2, shadow on, the same session replayed"):
            on = await replay(stage, "on", planned, shadow=True)
        with progress.phase("floor", "floor, every call with its whole history cached"):
            lowest = await floor(stage, planned)
        with progress.phase("again", "run 3, shadow off, first calls again"):
            again = await replay(stage, "again", _until_first_switch(planned), shadow=False)
    runs = Runs(off=off, on=on, floor=lowest, again=again, float32_models=float32_models(config))
    return Played(runs=runs, planned=planned)


def _two_models(config: ClusterConfig) -> tuple[str, str]:
    """The first two of the configuration, if the session fits into them."""
    if len(config.models) < 2:
        raise ScriptInvalid(f"models: the demo switches between two, got {list(config.models)}")
    first, second, *_ = config.models
    for name in (first, second):
        window = config.models[name].max_model_len
        if window < TARGET_TOKENS + 2 * MAX_OUTPUT_TOKENS:
            raise ScriptInvalid(
                f"models.{name}.max_model_len: {window}, the demo's session needs at least "
                f"{TARGET_TOKENS + 2 * MAX_OUTPUT_TOKENS}"
            )
    return first, second


def _front_ends(config: ClusterConfig) -> dict[str, str]:
    """One engine per model that counts tokens; the coordinator has no such endpoint."""
    return {instance.model: instance.url for instance in reversed(config.instances.values())}


def _until_first_switch(planned: list[PlannedCall]) -> list[PlannedCall]:
    first = next(call.call for call in planned if call.is_switch)
    return planned[:first]
