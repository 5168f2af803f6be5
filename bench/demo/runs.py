"""The four runs of the demo: record, replay with shadow, floor, short repeat without shadow.

Each run is a tenant of its own, so it starts from empty caches on every instance. No step waits for
a shadow: `on` sends its calls after the recorded gaps, whatever the shadows have done by then."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bench.demo.budget import ContextPlan, fit
from bench.demo.client import AgentClient, Limits, Message, SessionView, TokenCounter
from bench.demo.errors import DemoError
from bench.demo.records import CallRow, PlannedCall, RunRecord, row_of
from bench.demo.script import SYSTEM_PROMPT, TASK, Step, is_switch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import aiohttp

    from bench.demo.progress import Progress
    from bench.demo.tools import Action, Toolbox

MIN_OUTPUT_TOKENS = 8
FLOOR_OUTPUT_TOKENS = 4
"""Only the first token of a floor call is read; what follows would only cost time."""
SETTLE_TIMEOUT_S = 20.0
WARM_UP_TEXT = "Describe a prefix cache in one sentence. " * 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What every run needs: where to send, what to count with, whom to tell."""

    http: aiohttp.ClientSession
    base_url: str
    counter: TokenCounter
    models: tuple[str, str]
    progress: Progress

    def client(self, run: str, *, shadow: bool) -> AgentClient:
        token = f"demo-{run}-{secrets.token_hex(8)}"
        return AgentClient(self.http, self.base_url, session_id=token, token=token, shadow=shadow)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The session to play: its steps, its gaps, its tools and how far its context grows."""

    steps: tuple[Step, ...]
    gaps_s: tuple[float, ...]
    toolbox: Toolbox
    plan: ContextPlan


async def warm_up(stage: Stage) -> None:
    """One call per model that no figure counts: first use of an engine or link is slow."""
    for model in stage.models:
        client = stage.client("warm-up", shadow=False)
        messages = [{"role": "user", "content": WARM_UP_TEXT}]
        await client.chat(model, messages, Limits(max_tokens=4))
        await client.finish()


async def record(stage: Stage, scenario: Scenario) -> tuple[list[PlannedCall], RunRecord]:
    """The first run, shadow off: makes the history that the others replay."""
    client = stage.client("off", shadow=False)
    limits = Limits(max_tokens=scenario.plan.output_tokens, min_tokens=MIN_OUTPUT_TOKENS)
    messages: list[Message] = [{"role": "system", "content": SYSTEM_PROMPT}]
    planned: list[PlannedCall] = []
    rows: list[CallRow] = []
    history_tokens, gap_s = 0, 0.0
    for index, step in enumerate(scenario.steps):
        model = stage.models[step.model]
        if step.action is None:
            messages.append({"role": "user", "content": TASK})
        else:
            started_s = time.perf_counter()
            history_tokens = await stage.counter.history(model, messages)
            content = await _tool_message(stage, scenario, index, history_tokens)
            messages.append({"role": "user", "content": content})
            await asyncio.sleep(scenario.gaps_s[index] - (time.perf_counter() - started_s))
            gap_s = time.perf_counter() - started_s
        reply = await client.chat(model, messages, limits)
        call = PlannedCall(
            call=index + 1,
            model=model,
            is_switch=is_switch(scenario.steps, index),
            messages=tuple(messages),
            history_tokens=history_tokens,
            gap_s=gap_s,
            action=str(step.action or ""),
            output_tokens=reply.output_tokens,
            output_text=reply.text,
        )
        planned.append(call)
        rows.append(row_of("off", client.session_id, call, reply))
        stage.progress.call(rows[-1])
        messages.append({"role": "assistant", "content": reply.text})
    return planned, await _closed("off", client, rows)


async def replay(
    stage: Stage, run: str, planned: Sequence[PlannedCall], *, shadow: bool
) -> RunRecord:
    """The same prompts, models, gaps and output lengths again."""
    client = stage.client(run, shadow=shadow)
    rows: list[CallRow] = []
    for call in planned:
        await asyncio.sleep(call.gap_s)
        # Without ignore_eos a bfloat16 output that leaves the recorded one could end early.
        limits = Limits(
            max_tokens=call.output_tokens, min_tokens=MIN_OUTPUT_TOKENS, ignore_eos=True
        )
        reply = await client.chat(call.model, call.messages, limits)
        rows.append(row_of(run, client.session_id, call, reply))
        stage.progress.call(rows[-1])
    return await _closed(run, client, rows)


async def floor(stage: Stage, planned: Sequence[PlannedCall]) -> RunRecord:
    """Each call right after its own model was made to hold the whole earlier history.

    The history is sent as an ordinary call, so under PD both P and D hold it; that call is waited
    for and not timed. What remains is what no shadow could save: the new input, the first token.

    The models take their calls side by side, each on its own core: the other one is at work in
    the `on` run too, with shadows."""
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_floor_of(stage, [call for call in planned if call.model == model]))
            for model in stage.models
        ]
    rows = sorted((row for task in tasks for row in task.result()), key=lambda row: row.call)
    return RunRecord(run="floor", rows=tuple(rows), shadow_tokens_computed=0, shadow_tokens_used=0)


async def _floor_of(stage: Stage, planned: Sequence[PlannedCall]) -> list[CallRow]:
    client = stage.client("floor", shadow=False)
    rows: list[CallRow] = []
    for call in planned:
        if call.history:
            await client.chat(call.model, call.history, Limits(max_tokens=1))
        limits = Limits(max_tokens=min(FLOOR_OUTPUT_TOKENS, call.output_tokens), ignore_eos=True)
        reply = await client.chat(call.model, call.messages, limits)
        rows.append(row_of("floor", client.session_id, replace(call, gap_s=0.0), reply))
        stage.progress.call(rows[-1])
    await client.finish()
    return rows


async def _tool_message(stage: Stage, scenario: Scenario, index: int, history_tokens: int) -> str:
    step = scenario.steps[index]
    assert step.action is not None, step
    result = await scenario.toolbox.run(step.action)
    weights = [later.weight for later in scenario.steps[index:]]
    limit_tokens = scenario.plan.result_tokens(history_tokens, weights)
    model = stage.models[step.model]
    return _tool_text(
        step.action, await fit(result, limit_tokens, lambda text: stage.counter.text(model, text))
    )


def _tool_text(action: Action, result: str) -> str:
    return f"Result of {action}:\n{result}"


async def _closed(run: str, client: AgentClient, rows: list[CallRow]) -> RunRecord:
    view = await client.settle(SETTLE_TIMEOUT_S)
    await client.finish()
    if len(view.calls) != len(rows):
        raise DemoError(
            f"run {run}: the coordinator knows {len(view.calls)} calls of session "
            f"{client.session_id}, {len(rows)} were made"
        )
    return RunRecord(
        run=run,
        rows=tuple(_with_shadow(row, view) for row in rows),
        shadow_tokens_computed=view.shadow_tokens_computed,
        shadow_tokens_used=view.shadow_tokens_used,
    )


def _with_shadow(row: CallRow, view: SessionView) -> CallRow:
    return replace(row, shadow_tokens=view.calls[row.call - 1].shadow_tokens)
