"""What a long run says while it works, one line per cell, and how long it still takes."""

from __future__ import annotations

import statistics
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bench.live.picks import normal, routed, switched, ttft, values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console
    from rich.table import Table

    from bench.live.cells import Cell
    from bench.live.options import Options
    from bench.live.records import Calibration, CellResult, ModelCalibration

AROUND_A_CELL_S = 12.0
"""Until the first one is measured: control, reset, coordinator, drain."""


class Progress:
    def __init__(self, console: Console, options: Options) -> None:
        self._console = console
        self.options = options
        self._started_s = time.monotonic()
        self._cells_s: list[float] = []

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, table: Table) -> None:
        self._console.print(table)

    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def plan(self, todo: Sequence[Cell]) -> None:
        chosen = len(self.options.chosen)
        minutes = len(todo) * self._cell_s() / 60
        self.say(
            f"{len(todo)} of {chosen} cells to run, {chosen - len(todo)} are on disk; about "
            f"{minutes:.0f} min after start and calibration"
        )

    def calibrated(self, calibration: Calibration) -> None:
        for name, model in calibration.models.items():
            self.say(
                f"{name}: prefill {1e3 * model.prefill_fixed_s:.0f} ms + "
                f"{1e3 * model.prefill_s_per_token:.2f} ms per token, decode "
                f"{1e3 * model.decode_s:.0f} ms per token; normal requests per second: saturated "
                f"{model.saturated_per_s:.2f}, capacity {model.capacity_per_s:.2f} (SLOs met at "
                f"{_tried_text(model)}); SLOs: TPOT {1e3 * model.tpot_slo_s:.0f} ms, TTFT "
                f"{model.ttft_slo_s(0):.1f} s and more for longer prompts"
            )
        self.say(f"ready after {self.elapsed_s():.0f} s")

    @contextmanager
    def recording(self, repeat: int, sessions: int) -> Iterator[None]:
        started_s = time.monotonic()
        yield
        spent_s = time.monotonic() - started_s
        self.say(f"repeat {repeat}: {sessions} sessions recorded in {spent_s:.0f} s")

    def has_time_for_one_more(self) -> bool:
        return self.elapsed_s() + self._cell_s() <= self.options.max_s

    def finished(self, cell: Cell, result: CellResult, left: int) -> None:
        facts, rows = result.facts, result.rows
        self._cells_s.append(facts.whole_s)
        switches = values(rows, switched, ttft)
        shown = f"{statistics.mean(switches):.0f} ms" if switches else "none"
        self.say(
            f"{cell.name:<26} {facts.whole_s:4.0f} s: {sum(map(normal, rows))} normal, "
            f"{sum(map(routed, rows))} session calls, {sum(not row.ok for row in rows)} failed, "
            f"switch TTFT {shown} ({len(switches)}), shadow tokens {facts.shadow_tokens_used} used "
            f"of {facts.computed_tokens}, client {facts.client_cpu_share:.1%} of a core; "
            f"{left} cells, about {left * self._cell_s() / 60:.0f} min left"
        )

    def _cell_s(self) -> float:
        if self._cells_s:
            return statistics.mean(self._cells_s)
        return self.options.settings.window_s + AROUND_A_CELL_S


def _tried_text(model: ModelCalibration) -> str:
    return ", ".join(f"{rate.per_s:.2f}: {rate.attainment:.0%}" for rate in model.tried)
