"""What happens in a cell, drawn before it begins: arrivals and lengths, routes, texts and gaps.

The plan of a cell depends on the seed, the repeat and the load, never on the controller: all
controllers of a repeat meet the same requests at the same times and the same sessions. What the
sessions' models answer is recorded once per repeat (bench.live.recording) and replayed as history.

Pure."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.live.lengths import draw_lengths
from bench.live.text import result_text, task_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.live.cells import Cell
    from bench.live.settings import Settings

TOKEN_IDS = (1000, 30_000)
"""Prompts of normal traffic are ids of ordinary words: exact lengths, and no two begin alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalRequest:
    """Of no session. Sent at its time, whatever the requests before it do."""

    key: str
    model: str
    at_s: float
    prompt_tokens: int
    output_tokens: int

    def prompt_ids(self) -> list[int]:
        return random.Random(self.key).choices(range(*TOKEN_IDS), k=self.prompt_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """One call of a session: who answers, what the agent adds to the history, and when."""

    model: str
    new_text: str
    gap_s: float
    """From the end of the call before to this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSession:
    key: str
    slot: int
    calls: tuple[PlannedCall, ...]

    def is_switch(self, index: int) -> bool:
        return index > 0 and self.calls[index].model != self.calls[index - 1].model


def plan_normal(
    cell: Cell, capacity_per_s: Mapping[str, float], settings: Settings
) -> list[NormalRequest]:
    """In order of arrival. A Poisson stream per model, at the cell's share of its capacity."""
    requests = []
    for model, rate_per_s in capacity_per_s.items():
        chance = random.Random(f"{settings.seed}/{cell.repeat}/{cell.load:g}/{model}")
        times_s = draw_arrivals(cell.load * rate_per_s, settings.window_s, chance)
        lengths = draw_lengths(len(times_s), settings.length_scale, chance)
        for number, (at_s, length) in enumerate(zip(times_s, lengths, strict=True)):
            request = NormalRequest(
                key=f"r{cell.repeat}/{cell.load:g}/{model}/{number}",
                model=model,
                at_s=at_s,
                prompt_tokens=length.prompt_tokens,
                output_tokens=length.output_tokens,
            )
            requests.append(request)
    return sorted(requests, key=lambda request: (request.at_s, request.key))


def draw_arrivals(rate_per_s: float, window_s: float, chance: random.Random) -> list[float]:
    times_s: list[float] = []
    at_s = chance.expovariate(rate_per_s)
    while at_s < window_s:
        times_s.append(at_s)
        at_s += chance.expovariate(rate_per_s)
    return times_s


def plan_sessions(repeat: int, models: Sequence[str], settings: Settings) -> list[PlannedSession]:
    """In the order in which each slot takes them."""
    sessions = []
    for slot in range(settings.slots):
        for number in range(settings.sessions_per_slot):
            key = f"r{repeat}/s{slot}/{number}"
            chance = random.Random(f"{settings.seed}/{key}")
            calls = _calls(models, settings, chance)
            sessions.append(PlannedSession(key=key, slot=slot, calls=calls))
    return sessions


def _calls(
    models: Sequence[str], settings: Settings, chance: random.Random
) -> tuple[PlannedCall, ...]:
    """A two-state Markov route: a call stays on its model or goes to another one."""
    model = chance.choice(models)
    calls = []
    for number in range(settings.calls_per_session):
        if number and chance.random() < settings.switch_probability:
            model = chance.choice([other for other in models if other != model])
        calls.append(
            PlannedCall(
                model=model,
                new_text=_new_text(number, settings, chance),
                gap_s=_lognormal(
                    settings.gap_median_s, settings.gap_sigma, settings.gap_max_s, chance
                ),
            )
        )
    return tuple(calls)


def _new_text(number: int, settings: Settings, chance: random.Random) -> str:
    if number == 0:
        return task_text(settings.task_words, chance)
    words = _lognormal(
        settings.result_words_median,
        settings.result_words_sigma,
        settings.result_words_max,
        chance,
    )
    return result_text(number, round(words), chance)


def _lognormal(median: float, sigma: float, most: float, chance: random.Random) -> float:
    return min(most, chance.lognormvariate(math.log(median), sigma))
