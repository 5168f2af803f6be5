"""The trace file: what is written comes back, and a bad disk stops the trace alone; no vLLM."""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from engine.trace import (
    Line,
    TraceEvent,
    TraceFailed,
    TraceHeader,
    TraceStep,
    TraceTally,
    TraceWriter,
)

if TYPE_CHECKING:
    from pathlib import Path

ROOMY_BYTES = 1 << 20
DECODER = msgspec.json.Decoder(Line)


def a_header() -> TraceHeader:
    return TraceHeader(
        instance="small-p",
        model="small",
        role="prefill",
        controller="harvest-slo",
        cap_s=0.1,
        idle_cap_s=0.2,
        slo_ttft_s=1.0,
        slo_tpot_s=0.2,
        beta=0.5,
        block_size=16,
        cap_blocks=100,
        batches_in_flight=1,
        start_unix_s=1.7e9,
        start_monotonic_s=100.0,
    )


def a_step(number: int, **changes: Any) -> TraceStep:
    return TraceStep(**({"t_s": number / 10, "step_s": 0.1, "shadow_tokens": number} | changes))


def lines_of(path: Path) -> list[Any]:
    return [DECODER.decode(line) for line in path.read_bytes().splitlines()]


def test_what_was_added_comes_back_and_defaults_take_no_room(tmp_path: Path) -> None:
    path, tally = tmp_path / "t.jsonl", TraceTally()
    writer = TraceWriter(path, a_header(), ROOMY_BYTES, tally)
    steps = [
        a_step(1, arrivals=[(0.05, "shadow")], carried_routed=True),
        a_step(0),
        TraceEvent(t_s=0.2, event="changed", changes={"beta": 0.1}),
    ]
    for step in steps:
        writer.add(step)
    writer.close("switched off", 5)
    header, *rest, end = lines_of(path)
    assert header == a_header()
    assert rest == steps
    assert (end.event, end.text, end.t_s) == ("end", "switched off", 0.2)
    assert json.loads(path.read_text().splitlines()[2]) == {
        "kind": "step",
        "t_s": 0.0,
        "step_s": 0.1,
    }
    assert (tally.lines, tally.failures) == (5, 0)


def test_a_full_file_ends_with_a_line_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    writer = TraceWriter(path, a_header(), 2000)
    for number in range(1000):
        writer.add(a_step(number))
    writer.close("too late", 5)
    *steps, end = lines_of(path)[1:]
    assert end.text == "size limit of 2000 bytes"
    assert [step.shadow_tokens for step in steps] == list(range(len(steps)))
    assert 1900 < path.stat().st_size < 2100
    assert writer.is_over
    writer.add(a_step(1))  # nothing happens


def test_a_disk_that_fails_ends_the_trace_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tally = TraceTally()
    writer = TraceWriter(tmp_path / "t.jsonl", a_header(), ROOMY_BYTES, tally)

    class FullDisk:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...
        def write(self, text: bytes) -> int:
            raise OSError(28, "No space left on device")

    writer._file.close()
    writer._file = FullDisk()  # type: ignore[assignment]  # what a full disk looks like
    with caplog.at_level(logging.ERROR):
        for number in range(10):
            writer.add(a_step(number))
        writer.close("switched off", 5)
        writer.add(a_step(11))
    assert writer.is_over
    assert tally.failures == 1
    complaints = [record.getMessage() for record in caplog.records]
    assert len(complaints) == 1
    assert "No space left on device" in complaints[0]


def test_a_disk_that_is_too_slow_costs_lines_and_says_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.trace.MOST_LINES_UNWRITTEN", 100)
    path = tmp_path / "t.jsonl"
    writer = TraceWriter(path, a_header(), ROOMY_BYTES)
    for number in range(1000):
        writer.add(a_step(number))
    writer.close("end", 5)
    lost = [line for line in lines_of(path) if getattr(line, "event", "") == "lost"]
    steps = [line for line in lines_of(path) if isinstance(line, TraceStep)]
    assert len(steps) + sum(int(line.text.split()[0]) for line in lost) == 1000


@pytest.mark.parametrize("content", ["", None, "earlier"])
def test_a_trace_or_an_empty_file_is_overwritten(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "t.jsonl"
    if content == "earlier":
        TraceWriter(path, a_header(), ROOMY_BYTES).close("end", 5)
    elif content is not None:
        path.write_text(content)
    TraceWriter(path, a_header(), ROOMY_BYTES).close("end", 5)
    assert len(lines_of(path)) == 2


def test_a_place_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceFailed, match="File exists"):
        TraceWriter(tmp_path / "file" / "t.jsonl", a_header(), ROOMY_BYTES)
    (tmp_path / "other.jsonl").write_text('{"kind":"other"}\n')
    with pytest.raises(TraceFailed, match="is no trace"):
        TraceWriter(tmp_path / "other.jsonl", a_header(), ROOMY_BYTES)
    os.mkfifo(tmp_path / "pipe.jsonl")  # nobody reads it: opening it would hold the engine up
    with pytest.raises(TraceFailed, match="is no trace"):
        TraceWriter(tmp_path / "pipe.jsonl", a_header(), ROOMY_BYTES)
