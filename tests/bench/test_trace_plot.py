"""`shadowprefill trace plot`: the numbers, the picture, and what is said of a bad file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from typer.testing import CliRunner

from bench.cli import app
from bench.trace_read import TraceUnreadable, read_trace
from bench.trace_summary import percentile, summary_of
from engine.counts import Behind
from engine.trace import TraceEvent, TraceHeader, TraceStep

if TYPE_CHECKING:
    from pathlib import Path

RUNNER = CliRunner()
PNG = b"\x89PNG"


def a_header(**changes: Any) -> TraceHeader:
    fields: dict[str, Any] = {
        "instance": "small",
        "model": "small",
        "role": "colocated",
        "controller": "harvest-slo",
        "cap_s": 0.1,
        "idle_cap_s": 0.4,
        "slo_ttft_s": 1.0,
        "slo_tpot_s": 0.2,
        "beta": 0.5,
        "block_size": 16,
        "cap_blocks": 100,
        "batches_in_flight": 1,
        "start_unix_s": 0.0,
        "start_monotonic_s": 0.0,
    }
    return TraceHeader(**(fields | changes))


def steps(count: int) -> list[TraceStep]:
    """Every second one carries 32 shadow tokens and takes 110 ms, the others 20 ms."""
    made = []
    now_s = 0.0
    for number in range(count):
        shadow = number % 2
        step_s = 0.11 if shadow else 0.02
        now_s += step_s
        made.append(
            TraceStep(
                t_s=now_s,
                step_s=step_s,
                budget_s=0.1 * shadow,
                reason="granted" if shadow else "no_slack",
                decode_requests=1,
                decode_tokens=1,
                prefill_tokens=10,
                shadow_tokens=32 * shadow,
                arrivals=[(0.05, "shadow")] if number % 10 == 0 else [],
            )
        )
    return made


def written(path: Path, *lines: Any) -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return path


@pytest.mark.parametrize("count", [40, 3000], ids=["one_by_one", "in_bins"])
def test_it_draws_and_sums_up(tmp_path: Path, count: int) -> None:
    change = TraceEvent(t_s=1.0, event="changed", cap_s=0.1, idle_cap_s=0.4, changes={"beta": 1})
    file = written(tmp_path / "t.jsonl", a_header(), *steps(count), change)
    result = RUNNER.invoke(app, ["trace", "plot", str(file)])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "t.png").read_bytes().startswith(PNG)
    text = result.output
    assert f"{count} iterations, {count // 2} with shadow tokens" in text
    assert f"tokens: {16 * count} shadow, {10 * count} prefill, {count} decode" in text
    assert "p50 110.0 ms, p99 110.0 ms, max 110.0 ms; of their cap p99 110%, max 110%" in text
    assert f"for an iteration with shadow tokens: {count // 10}, p50 50.0 ms" in text
    assert f"with a shadow job: {count}: no_slack 50.0%, granted 50.0%" in text


def test_the_cap_is_that_of_the_moment_and_of_an_idle_instance(tmp_path: Path) -> None:
    alone = TraceStep(t_s=1.0, step_s=0.2, shadow_tokens=10)
    beside = TraceStep(t_s=2.0, step_s=0.2, shadow_tokens=10, decode_requests=1)
    later = TraceStep(t_s=4.0, step_s=0.2, shadow_tokens=10, decode_requests=1)
    change = TraceEvent(t_s=3.0, event="changed", cap_s=0.3, idle_cap_s=0.3)
    trace = read_trace(written(tmp_path / "t.jsonl", a_header(), alone, beside, change, later))
    assert trace.caps_s() == [0.4, 0.1, 0.3]
    assert trace.between(3.5, None).caps_s() == [0.3]


def test_a_part_of_the_trace_is_drawn_alone(tmp_path: Path) -> None:
    file = written(tmp_path / "t.jsonl", a_header(), *steps(100))
    output = tmp_path / "part.png"
    arguments = ["trace", "plot", str(file), "--output", str(output), "--from", "1", "--to", "2"]
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert output.read_bytes().startswith(PNG)
    assert "16 iterations" in result.output
    beyond = RUNNER.invoke(app, ["trace", "plot", str(file), "--from", "100"])
    assert beyond.exit_code == 1
    assert "no iteration ended between 100 and inf s; the last ended at 6.5" in beyond.output


def test_a_trace_without_shadow_work_is_drawn_too(tmp_path: Path) -> None:
    idle = TraceStep(t_s=1.0, step_s=0.02, decode_requests=1, decode_tokens=1, reason="no_job")
    file = written(tmp_path / "t.jsonl", a_header(slo_tpot_s=100.0), idle)
    result = RUNNER.invoke(app, ["trace", "plot", str(file)])
    assert result.exit_code == 0, result.output
    assert "no iteration carried shadow tokens" in result.output
    assert "no shadow job was ever waiting" in result.output


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "t.jsonl: is empty; a trace begins with a header line"),
        (b"{}\n", "t.jsonl:1: is no line of a trace: Object missing required field `kind`"),
        (b'{"kind":"step","t_s":1,"step_s":1}\n', "t.jsonl:1: must be the header of a trace"),
        (None, "t.jsonl: No such file or directory"),
    ],
)
def test_a_file_that_is_no_trace_is_named_with_its_line(
    tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    file = tmp_path / "t.jsonl"
    if content is not None:
        file.write_bytes(content)
    result = RUNNER.invoke(app, ["trace", "plot", str(file)])
    assert result.exit_code == 1
    assert complaint in result.output


def test_a_bad_line_in_the_middle_and_another_version_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "t.jsonl", a_header(), *steps(2), {"kind": "step", "t_s": "soon"})
    with pytest.raises(TraceUnreadable, match=r"t.jsonl:4: .*Expected `float`, got `str`"):
        read_trace(file)
    with pytest.raises(TraceUnreadable, match=r"t.jsonl:1: version must be 1, got 2"):
        read_trace(written(tmp_path / "t.jsonl", a_header(version=2)))
    with pytest.raises(TraceUnreadable, match=r"t.jsonl:2: a second header"):
        read_trace(written(tmp_path / "t.jsonl", a_header(), a_header()))


def test_a_last_line_that_is_cut_off_is_left_out_and_told(tmp_path: Path) -> None:
    file = written(tmp_path / "t.jsonl", a_header(), *steps(4))
    file.write_bytes(file.read_bytes()[:-5])
    trace = read_trace(file)
    assert len(trace.steps) == 3
    assert "cut off" in trace.note


def test_waits_are_sorted_by_what_ran_and_percentiles_are_values_that_occurred(
    tmp_path: Path,
) -> None:
    arrivals = [(0.3, "shadow"), (0.1, "shadow"), (0.2, "foreground")]
    step = TraceStep(t_s=1.0, step_s=0.02, arrivals=arrivals)
    summary = summary_of(read_trace(written(tmp_path / "t.jsonl", a_header(), step)))
    assert summary.waits_s[Behind.SHADOW] == [0.1, 0.3]
    assert summary.waits_s[Behind.FOREGROUND] == [0.2]
    assert [percentile([1, 2, 3, 4], p) for p in (0, 50, 99, 100)] == [1, 2, 4, 4]
