"""The session that the demo plays: what is asked, which tool runs before each call, who answers.

The route and the tool calls are fixed, so that every run meets the same switches; the models'
outputs and the tools' results are real. The results share out a token budget by weight (`budget`),
so that the context grows the same way whatever the repository's files become."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from bench.demo.tools import Action

SYSTEM_PROMPT = """\
You are a careful coding agent working in a Python repository. You can use four tools: \
list_files(folder), read_file(path, first_line, last_line), grep(pattern, folder) and \
run_test(path). In each turn you receive the result of your last tool call. Say in one or two \
short sentences what the result tells you about the task and what you want to look at next. Name \
files and functions exactly as they are written in the repository. Do not invent results that you \
have not seen."""

TASK = """\
Task: this repository keeps the prompt of an agent session warm on models that did not get the \
call (a "shadow job"). Find out how many tokens of a shadow job one engine iteration may carry, \
which rule decides it, where the coordinator starts and cancels such a job, and whether the rule \
is tested. Then say which file has to change so that a shadow chunk becomes smaller. Start by \
looking at the repository's layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call: the tool that runs before it (none before the first) and the model that answers."""

    model: int
    """0 or 1: index of the demo's two models."""
    action: Action | None = None
    weight: float = 0.0
    """Share of the token budget that the tool's result gets, relative to the other steps."""


def _step(model: int, weight: float, tool: str, *arguments: str) -> Step:
    return Step(model=model, action=Action(tool=tool, arguments=arguments), weight=weight)


SMALL, LARGE = 0, 1
# A call on `large` before a switch back gets a short result: only that call and one gap hide the
# shadow on `small`. That is kind to the shadow, and README says so.
STEPS: tuple[Step, ...] = (
    Step(model=SMALL),
    _step(SMALL, 1.0, "list_files", "."),
    _step(LARGE, 0.4, "run_test", "tests/policy/test_slack.py"),
    _step(LARGE, 1.3, "read_file", "policy/slack.py", "1", "140"),
    _step(SMALL, 0.7, "grep", "slack", "engine"),
    _step(SMALL, 1.4, "read_file", "engine/scheduler.py", "1", "140"),
    _step(LARGE, 0.5, "grep", "supersede|cancel", "coordinator"),
    _step(SMALL, 1.1, "read_file", "coordinator/shadow_flow.py", "1", "140"),
    _step(SMALL, 1.6, "read_file", "coordinator/pd_flow.py", "1", "160"),
    _step(LARGE, 0.5, "grep", "n_min_tokens|iteration_cap_s", "."),
    _step(SMALL, 0.4, "run_test", "tests/policy/test_shadow_queue.py"),
)

GAP_MEDIAN_S = 2.0
GAP_SIGMA = 0.4
GAP_MAX_S = 6.0


def draw_gaps(calls: int, seed: int) -> list[float]:
    """Seconds between the end of a call and the start of the next; the first call has none."""
    chance = random.Random(seed)
    drawn = [chance.lognormvariate(math.log(GAP_MEDIAN_S), GAP_SIGMA) for _ in range(calls - 1)]
    return [0.0, *(min(gap, GAP_MAX_S) for gap in drawn)]


def is_switch(steps: tuple[Step, ...], index: int) -> bool:
    return index > 0 and steps[index].model != steps[index - 1].model
