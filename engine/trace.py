"""The trace of an engine, as JSON lines in a file: one per iteration, or per pull on a decode
instance.

The step only appends to a list in memory; a thread encodes and writes, so that a slow disk holds up
nobody. A trace that cannot be written ends, and the engine goes on: it says so once in its log.

Imports neither vLLM nor torch: what reads a trace uses the same types.

* TraceFailed      the file cannot be written: choose another one

Hosts: engine.observed, bench.trace_read."""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO

TRACE_VERSION = 1
FLUSH_S = 0.5
MOST_LINES_UNWRITTEN = 50_000

logger = logging.getLogger("vllm.shadowprefill")


class TraceFailed(Exception):
    """This file cannot be the trace: choose another one."""


class _Line(msgspec.Struct, tag_field="kind", forbid_unknown_fields=True):
    """One line of the file; the default values of a field are left out."""


class TraceHeader(_Line, kw_only=True, tag="header"):
    """The first line."""

    version: int = TRACE_VERSION
    instance: str
    model: str
    role: str
    controller: str
    cap_s: float
    """Longest iteration that may carry shadow tokens beside others."""
    idle_cap_s: float
    """The same on an idle instance."""
    slo_ttft_s: float
    slo_tpot_s: float
    beta: float
    block_size: int
    cap_blocks: int
    batches_in_flight: int
    start_unix_s: float
    start_monotonic_s: float
    """All other times are counted from it."""


class TraceStep(_Line, kw_only=True, tag="step", omit_defaults=True):
    """One iteration, written when its output came back."""

    t_s: float
    """Its end."""
    step_s: float
    predicted_s: float = 0.0
    budget_s: float = 0.0
    """0 where the plan looked at no time: no job, or something waits."""
    reason: str = ""
    waiting_requests: int = 0
    decode_requests: int = 0
    decode_tokens: int = 0
    prefill_tokens: int = 0
    shadow_tokens: int = 0
    queued_jobs: int = 0
    shadow_blocks: int = 0
    credit_s: float = 0.0
    carried_routed: bool = False
    arrivals: list[tuple[float, str]] = []
    """Since the line before: seconds that a request waited for the iteration in progress, and what
    that carried (engine.counts.Behind)."""


class TraceEvent(_Line, kw_only=True, tag="event", omit_defaults=True):
    """Something that is no iteration: the parameters changed, the trace ended."""

    t_s: float
    event: str
    text: str = ""
    cap_s: float = 0.0
    idle_cap_s: float = 0.0
    changes: dict[str, Any] = {}


class TracePull(_Line, kw_only=True, tag="pull", omit_defaults=True):
    """KV on its way to a decode instance: a transfer began, ended, or is waited for no longer."""

    t_s: float
    pull: str
    """The request that it is for."""
    phase: str
    kv_class: str
    tokens: int
    size_bytes: int
    peer: str = ""
    normal_in_flight: int = 0
    """Of others, at its start."""
    shadow_in_flight: int = 0
    outcome: str = ""
    """Of an end (engine.inbound.PullOutcome)."""
    duration_s: float = 0.0


PULL_START, PULL_END, PULL_GIVEN_UP = "start", "end", "given_up"
"""Phases."""

Line = TraceHeader | TraceStep | TraceEvent | TracePull
CHANGED, LOST, END = "changed", "lost", "end"
"""Events."""

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class TraceTally:
    """Of all traces that one engine has written."""

    lines: int = 0
    failures: int = 0


class TraceWriter:
    """Owns the file and its thread, until `close` or until it cannot go on (`is_over`)."""

    def __init__(
        self, path: Path, header: TraceHeader, max_bytes: int, tally: TraceTally | None = None
    ) -> None:
        """Raises TraceFailed."""
        self.path = path
        self.is_over = False
        self.tally = tally or TraceTally()
        self._start_s = header.start_monotonic_s
        self._max_bytes = max_bytes
        self._bytes = 0
        self._last_t_s = 0.0
        self._lost = 0
        self._unwritten: deque[TraceStep | TraceEvent | TracePull] = deque()
        self._closing = threading.Event()
        self._end_text = ""
        self._file = _opened(path)
        try:
            self._put([header])
        except OSError as error:
            self._file.close()
            raise TraceFailed(f"{path}: {error.strerror}") from None
        self._thread = threading.Thread(target=self._run, name="shadowprefill-trace", daemon=True)
        self._thread.start()

    def since_start_s(self, now_s: float) -> float:
        return round(now_s - self._start_s, 6)

    def add(self, line: TraceStep | TraceEvent | TracePull) -> None:
        """From the engine's thread; neither waits nor raises."""
        if self.is_over:
            return
        if len(self._unwritten) >= MOST_LINES_UNWRITTEN:
            self._lost += 1
            return
        self._unwritten.append(line)

    def close(self, text: str, wait_s: float) -> None:
        """Writes what is left and why it ends; waits for a slow disk only so long."""
        self._end_text = text
        self._closing.set()
        self._thread.join(wait_s)

    def _run(self) -> None:
        try:
            with self._file:
                self._write_until_over()
        except OSError as error:
            self.tally.failures += 1
            logger.error("the trace %s ends, the engine goes on: %s", self.path, error.strerror)
        finally:
            self.is_over = True
            self._unwritten.clear()

    def _write_until_over(self) -> None:
        closing = False
        while not closing:
            closing = self._closing.wait(FLUSH_S)
            if not self._put(self._taken()):
                self._end(f"size limit of {self._max_bytes} bytes")
                logger.warning("the trace %s has reached its size limit and ends", self.path)
                return
        self._end(self._end_text)

    def _taken(self) -> list[TraceStep | TraceEvent | TracePull]:
        lines = [self._unwritten.popleft() for _ in range(len(self._unwritten))]
        if lines:
            self._last_t_s = lines[-1].t_s
        if self._lost:
            text, self._lost = f"{self._lost} lines: the disk is too slow", 0
            lines.append(TraceEvent(t_s=self._last_t_s, event=LOST, text=text))
        return lines

    def _put(self, lines: list[Any]) -> bool:
        """False once the file is full: the lines that do not fit are not written."""
        fits = True
        encoded: list[bytes] = []
        for line in lines:
            text = _encode(line) + b"\n"
            if self._bytes + len(text) > self._max_bytes:
                fits = False
                break
            self._bytes += len(text)
            encoded.append(text)
        self._file.write(b"".join(encoded))
        self._file.flush()
        self.tally.lines += len(encoded)
        return fits

    def _end(self, text: str) -> None:
        self._file.write(_encode(TraceEvent(t_s=self._last_t_s, event=END, text=text)) + b"\n")
        self.tally.lines += 1


def _opened(path: Path) -> IO[bytes]:
    """Raises TraceFailed. A file that is no trace is never overwritten: a control request, which
    may come from another machine, names it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not (path.is_file() and _is_trace(path)):
            raise TraceFailed(f"{path} exists and is no trace: it is not overwritten")
        return path.open("wb")
    except OSError as error:
        raise TraceFailed(f"{path}: {error.strerror}") from None


def _is_trace(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(64)
    return not start or start.startswith(b'{"kind":"header","version":')
