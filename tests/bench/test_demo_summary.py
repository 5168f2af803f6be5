"""The demo's arithmetic and its verdict: every promise can be broken, and is then named."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from bench.demo.chart import text_chart
from bench.demo.files import write_files
from bench.demo.records import CallRow, PlannedCall, RunRecord
from bench.demo.summary import (
    Runs,
    broken_promises,
    cached_share,
    every,
    summarise,
    switches,
    tax_removed_share,
)
from bench.demo.table import closing_lines, demo_table

if TYPE_CHECKING:
    from pathlib import Path

CALLS = 12


def a_row(run: str, call: int, *, ttft_ms: float, cached_tokens: int) -> CallRow:
    return CallRow(
        run=run,
        session_id=f"demo-{run}",
        call=call,
        model="large" if call % 2 else "small",
        is_switch=call > 1,
        prompt_tokens=600 * call,
        history_tokens=600 * (call - 1),
        cached_tokens=cached_tokens,
        shadow_tokens=100 if run == "on" and call > 1 else 0,
        output_tokens=3,
        ttft_ms=ttft_ms,
        e2el_ms=ttft_ms + 100,
        gap_s=2.0,
        p_instance="p",
        d_instance="d",
        finish_reason="length",
        prompt_ids=(1, 2, call),
        output_ids=(7, 8, call),
    )


def a_run(run: str, ttft_ms: float, cached_of_history: float, calls: int = CALLS) -> RunRecord:
    rows = [
        a_row(run, call, ttft_ms=ttft_ms, cached_tokens=int(600 * (call - 1) * cached_of_history))
        for call in range(1, calls + 1)
    ]
    is_on = run == "on"
    return RunRecord(
        run=run,
        rows=tuple(rows),
        shadow_tokens_computed=4000 if is_on else 0,
        shadow_tokens_used=3000 if is_on else 0,
    )


def good_runs() -> Runs:
    return Runs(
        off=a_run("off", 1000, 0.5),
        on=a_run("on", 300, 0.95),
        floor=a_run("floor", 200, 1.0),
        again=a_run("again", 1000, 0.5, calls=3),
        float32_models=frozenset({"large"}),
    )


def changed(record: RunRecord, call: int, **values: Any) -> RunRecord:
    rows = [replace(row, **values) if row.call == call else row for row in record.rows]
    return replace(record, rows=tuple(rows))


def planned_calls() -> list[PlannedCall]:
    return [
        PlannedCall(
            call=row.call,
            model=row.model,
            is_switch=row.is_switch,
            messages=({"role": "system", "content": "s"}, {"role": "user", "content": "u"}),
            history_tokens=row.history_tokens,
            gap_s=row.gap_s,
            action="list_files .",
            output_tokens=3,
            output_text="abc",
        )
        for row in good_runs().off.rows
    ]


def test_the_summary_of_good_runs() -> None:
    summary = summarise(good_runs())
    assert (summary.calls, summary.switch_calls) == (12, 11)
    assert summary.ttft_ms_switch_off_mean == 1000
    assert summary.ttft_ms_switch_on_mean == 300
    assert summary.ttft_ms_switch_floor_mean == 200
    assert summary.switch_tax_removed_share == pytest.approx(0.875)
    assert summary.cached_share_switch_off == pytest.approx(0.5)
    assert summary.cached_share_switch_on == pytest.approx(0.95)
    assert summary.outputs_equal
    assert summary.outputs_equal_share_bf16 == 1.0
    assert summary.shadow_tokens_used_share == pytest.approx(0.75)
    # large: calls 1, 3, .. 11 with 600 new tokens each and half of the history uncached
    assert summary.prefill_ms_per_token["large"] == pytest.approx(6000 / 12_600, abs=0.01)
    assert broken_promises(good_runs(), summary) == []


def test_the_tax_is_taken_over_switch_calls_only() -> None:
    runs = good_runs()
    slow_first = replace(runs, on=changed(runs.on, 1, ttft_ms=90_000.0))
    assert tax_removed_share(slow_first) == tax_removed_share(runs)


def test_cached_shares_are_of_the_tokens_that_existed_before_the_call() -> None:
    record = changed(a_run("on", 1, 1.0), 2, cached_tokens=5000)
    assert cached_share(record, switches) == 1.0
    assert cached_share(record, lambda row: row.call == 1) is None
    assert cached_share(record, every) == 1.0


BROKEN = {
    "cached_share_switch_on: 0.8": lambda runs: replace(runs, on=a_run("on", 300, 0.8)),
    "switch_tax_removed_share: 0.75": lambda runs: replace(runs, on=a_run("on", 400, 0.95)),
    "switch_tax_removed_share: there was no tax": lambda runs: replace(
        runs, floor=a_run("floor", 1000, 1.0)
    ),
    "outputs_equal: calls [3]": lambda runs: replace(
        runs, on=changed(runs.on, 3, output_ids=(7, 9, 3))
    ),
    "outputs_equal: calls [] of 0": lambda runs: replace(runs, float32_models=frozenset()),
    "outputs_equal: calls [1]": lambda runs: replace(
        runs,
        on=changed(runs.on, 1, output_ids=()),
        off=changed(runs.off, 1, output_ids=()),
    ),
    "prompts_equal: calls [4]": lambda runs: replace(
        runs,
        on=changed(runs.on, 4, prompt_ids=()),
        off=changed(runs.off, 4, prompt_ids=()),
    ),
    "prompts_equal: calls [5]": lambda runs: replace(runs, on=changed(runs.on, 5, prompt_ids=(9,))),
    "empty caches: call 3": lambda runs: replace(
        runs, again=changed(runs.again, 3, cached_tokens=601)
    ),
    "prompt_tokens_last: 5999": lambda runs: replace(
        runs, off=changed(runs.off, CALLS, prompt_tokens=5999)
    ),
    "calls: 9": lambda runs: replace(
        runs, off=a_run("off", 1000, 0.5, 9), on=a_run("on", 300, 0.95, 9)
    ),
}


@pytest.mark.parametrize("named", BROKEN)
def test_a_promise_that_is_not_kept_is_named(named: str) -> None:
    runs = BROKEN[named](good_runs())
    broken = broken_promises(runs, summarise(runs))
    assert any(line.startswith(named) for line in broken), broken


def test_a_bfloat16_output_that_differs_is_reported_and_breaks_nothing() -> None:
    runs = good_runs()
    runs = replace(runs, on=changed(runs.on, 2, output_ids=(1,)))
    summary = summarise(runs)
    assert summary.outputs_equal_share_bf16 == pytest.approx(5 / 6, abs=1e-3)
    assert broken_promises(runs, summary) == []


def test_the_table_has_a_row_per_call_and_the_means_below() -> None:
    console = Console(file=io.StringIO(), width=140)
    console.print(demo_table(good_runs(), "title"))
    printed = console.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO above
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines()]
    by_name = {row[0]: row for row in cells if row and row[0].isdigit()}
    assert len(by_name) == CALLS
    last = ["12", "small", "switch", "7200", "3300", "6270", "1000", "300", "200", "100"]
    assert by_name["12"] == last
    assert ["mean", "switch calls", "", "", "50.0%", "95.0%", "1000", "300", "200", "100"] in cells
    assert ["mean", "all calls", "", "", "50.0%", "95.0%", "1000", "300", "200", "92"] in cells
    assert "87.5%" in closing_lines(summarise(good_runs()))[0]


def test_the_text_chart_has_three_bars_per_call_of_the_right_lengths() -> None:
    lines = text_chart(good_runs(), "title").splitlines()[3:]
    assert len(lines) == 3 * CALLS
    assert [line.count("█") for line in lines[:3]] == [60, 18, 12]


def test_the_files_hold_a_row_per_call_and_run(tmp_path: Path) -> None:
    write_files(tmp_path / "demo", good_runs(), planned_calls(), {"calls": 12}, "title")
    rows = [json.loads(line) for line in (tmp_path / "demo/calls.jsonl").read_text().splitlines()]
    assert [row["run"] for row in rows] == ["off"] * 12 + ["on"] * 12 + ["floor"] * 12 + [
        "again"
    ] * 3
    named = (
        "session_id call model is_switch prompt_tokens cached_tokens shadow_tokens output_tokens "
        "ttft_ms e2el_ms p_instance d_instance"
    )
    assert set(named.split()) <= set(rows[0])
    assert json.loads((tmp_path / "demo/summary.json").read_text()) == {"calls": 12}
    assert (tmp_path / "demo/ttft.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "demo/ttft.txt").read_text().startswith("title\n")
