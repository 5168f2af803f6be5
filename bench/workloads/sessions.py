"""Routed sessions of the five kinds of the paper's Table 1: how many calls, how long each prompt,
how much of it was there before, how long the agent waits between calls.

Which model serves a call is not decided here but by a router (`routers`), so that one set of
sessions is replayed under every router and every approach."""

from __future__ import annotations

# Read at run time too: msgspec decodes by these annotations.
from collections.abc import Mapping  # noqa: TC003
from dataclasses import dataclass
from functools import cache
from importlib import resources

import msgspec
import numpy as np


class Lognormal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Draws beyond the limits are put on them."""

    median: float
    sigma: float
    least: float = 0.0
    most: float = float("inf")

    def __post_init__(self) -> None:
        if not (self.median > 0 and self.sigma >= 0):
            raise ValueError(f"median must be > 0 and sigma >= 0, got {self.median}, {self.sigma}")
        if not 0 <= self.least <= self.most:
            raise ValueError(f"limits must be 0 <= least <= most, got {self.least}, {self.most}")

    def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        drawn = self.median * np.exp(self.sigma * rng.standard_normal(count))
        limited: np.ndarray = np.clip(drawn, self.least, self.most)
        return limited


class PublishedKind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of the paper's Table 1."""

    switch_share: float
    """Of the calls."""
    switches_per_session: float
    prompt_mean_tokens: int
    prompt_p99_tokens: int
    hit_pct: float
    switch_hit_pct: float
    calls_per_session: float
    calls_note: str


class SessionLaw(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    calls: Lognormal
    initial_tokens: Lognormal
    """The first prompt: system prompt, tools and task."""
    input_tokens: Lognormal | None
    """What the agent adds to a tool result; none where the two are counted together."""
    tool_result_tokens: Lognormal
    output_tokens: Lognormal
    gap_s: Lognormal
    """From the end of a call to the next one: the tool runs."""
    window_tokens: int
    summary_tokens: int
    """What the history is compacted to when a call would not fit the window any more."""
    note: str

    def __post_init__(self) -> None:
        if not 1 <= self.summary_tokens < self.window_tokens // 2:
            raise ValueError(
                f"summary_tokens must be 1 to less than half of the window of "
                f"{self.window_tokens}, got {self.summary_tokens}"
            )


class SessionKind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    published: PublishedKind
    law: SessionLaw
    tasks: tuple[str, ...]
    """Names of the score matrix whose queries the sessions of this kind walk through."""


class _Kinds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    kinds: Mapping[str, SessionKind]


@dataclass(frozen=True, slots=True)
class SessionCall:
    kept_tokens: int
    """Of the history (prompt and output of the call before), that this prompt starts with. None
    after a compaction."""
    new_tokens: int
    output_tokens: int
    gap_s: float
    """From the end of the call before, or from the session's arrival."""

    @property
    def prompt_tokens(self) -> int:
        return self.kept_tokens + self.new_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedSession:
    session_id: str
    kind: str
    task: str
    arrival_s: float
    calls: tuple[SessionCall, ...]


@cache
def session_kinds() -> Mapping[str, SessionKind]:
    data = resources.files("bench.workloads").joinpath("data", "session_kinds.json").read_bytes()
    return msgspec.json.decode(data, type=_Kinds).kinds


def session_kind(name: str) -> SessionKind:
    known = session_kinds()
    if name not in known:
        raise ValueError(f"session kind must be one of {sorted(known)}, got {name!r}")
    return known[name]


def draw_sessions(
    kind: str, sessions_per_s: float, duration_s: float, rng: np.random.Generator
) -> tuple[RoutedSession, ...]:
    """Poisson arrivals before `duration_s`; there may be none."""
    if not (sessions_per_s > 0 and duration_s > 0):
        raise ValueError(
            f"sessions_per_s and duration_s must be > 0, got {sessions_per_s} and {duration_s}"
        )
    count = int(rng.poisson(sessions_per_s * duration_s))
    arrivals_s = np.sort(rng.uniform(0, duration_s, count))
    return tuple(
        draw_session(kind, f"{kind}-{number}", float(arrival_s), rng)
        for number, arrival_s in enumerate(arrivals_s)
    )


def draw_session(
    kind: str, session_id: str, arrival_s: float, rng: np.random.Generator
) -> RoutedSession:
    described = session_kind(kind)
    return RoutedSession(
        session_id=session_id,
        kind=kind,
        task=described.tasks[int(rng.integers(len(described.tasks)))],
        arrival_s=arrival_s,
        calls=_draw_calls(described.law, rng),
    )


def _draw_calls(law: SessionLaw, rng: np.random.Generator) -> tuple[SessionCall, ...]:
    count = max(1, round(float(law.calls.draw(1, rng)[0])))
    new = _whole(law.tool_result_tokens.draw(count, rng))
    if law.input_tokens is not None:
        new += _whole(law.input_tokens.draw(count, rng))
    new[0] = _whole(law.initial_tokens.draw(1, rng))[0]
    output = np.minimum(_whole(law.output_tokens.draw(count, rng)), law.window_tokens // 4)
    new = np.minimum(new, law.window_tokens - law.summary_tokens - output)
    gap_s = law.gap_s.draw(count, rng)
    gap_s[0] = 0.0
    calls: list[SessionCall] = []
    history = 0
    for i in range(count):
        kept, added = history, int(new[i])
        if kept + added + int(output[i]) > law.window_tokens:
            kept, added = 0, law.summary_tokens + added
        calls.append(SessionCall(kept, added, int(output[i]), float(gap_s[i])))
        history = kept + added + int(output[i])
    return tuple(calls)


def _whole(drawn: np.ndarray) -> np.ndarray:
    at_least_one: np.ndarray = np.maximum(1, np.rint(drawn)).astype(np.int64)
    return at_least_one
