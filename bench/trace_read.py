"""Reads the trace of an engine (engine.trace), strictly: a bad line is named, not skipped.

Hosts: bench.trace_plot, bench.trace_summary."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from engine.trace import (
    CHANGED,
    TRACE_VERSION,
    Line,
    TraceEvent,
    TraceHeader,
    TracePull,
    TraceStep,
)

if TYPE_CHECKING:
    from pathlib import Path

_decode = msgspec.json.Decoder(Line).decode


class TraceUnreadable(Exception):
    """This file is no trace that we can read."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One file, or a part of it."""

    header: TraceHeader
    steps: list[TraceStep]
    events: list[TraceEvent]
    pulls: list[TracePull] = field(default_factory=list)
    """Of a decode instance."""
    note: str = ""
    """What a reader should know of the file."""

    def between(self, from_s: float | None, to_s: float | None) -> Trace:
        """The iterations that ended then; raises TraceUnreadable if there are none."""
        low = float("-inf") if from_s is None else from_s
        high = float("inf") if to_s is None else to_s
        steps = [step for step in self.steps if low <= step.t_s <= high]
        if not steps:
            last_s = self.steps[-1].t_s if self.steps else 0.0
            raise TraceUnreadable(
                f"no iteration ended between {low:g} and {high:g} s; the last ended at {last_s:.1f}"
            )
        # Earlier changes of the cap still hold.
        return replace(self, steps=steps, events=[e for e in self.events if e.t_s <= high])

    def caps_s(self) -> list[float]:
        """The cap in force at each iteration: another one where nobody else was served."""
        caps = (self.header.cap_s, self.header.idle_cap_s)
        changes = [event for event in self.events if event.event == CHANGED]
        limits = []
        for step in self.steps:
            while changes and changes[0].t_s <= step.t_s - step.step_s:
                change = changes.pop(0)
                caps = (change.cap_s, change.idle_cap_s)
            limits.append(caps[0] if step.decode_requests or step.prefill_tokens else caps[1])
        return limits


def read_trace(path: Path) -> Trace:
    """Raises TraceUnreadable."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TraceUnreadable(f"{path}: {error.strerror}") from None
    lines = content.split(b"\n")
    unfinished = lines.pop()  # empty after a complete line
    note = "its last line is cut off: the engine was killed, or still writes" if unfinished else ""
    if not lines:
        raise TraceUnreadable(f"{path}: is empty; a trace begins with a header line")
    header = _header(path, lines[0])
    steps: list[TraceStep] = []
    events: list[TraceEvent] = []
    pulls: list[TracePull] = []
    for number, text in enumerate(lines[1:], start=2):
        line = _line(path, number, text)
        if isinstance(line, TraceStep):
            steps.append(line)
        elif isinstance(line, TraceEvent):
            events.append(line)
        elif isinstance(line, TracePull):
            pulls.append(line)
        else:
            raise TraceUnreadable(f"{path}:{number}: a second header; one file holds one trace")
    return Trace(header, steps, events, pulls, note)


def _header(path: Path, text: bytes) -> TraceHeader:
    header = _line(path, 1, text)
    if not isinstance(header, TraceHeader):
        raise TraceUnreadable(f"{path}:1: must be the header of a trace")
    if header.version != TRACE_VERSION:
        raise TraceUnreadable(
            f"{path}:1: version must be {TRACE_VERSION}, got {header.version}: it was written by "
            "another version of shadowprefill"
        )
    return header


def _line(path: Path, number: int, text: bytes) -> Line:
    try:
        return _decode(text)
    except msgspec.DecodeError as error:
        raise TraceUnreadable(f"{path}:{number}: is no line of a trace: {error}") from None
