"""What a user sees and keeps of a played demo: table, verdict, files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.demo.files import summary_json, write_files
from bench.demo.summary import Runs, broken_promises, summarise
from bench.demo.table import closing_lines, demo_table

if TYPE_CHECKING:
    from pathlib import Path

    from bench.demo.place import Conditions
    from bench.demo.progress import Progress
    from bench.demo.records import PlannedCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    runs: Runs
    planned: list[PlannedCall]


def report(
    played: Played, seen: Conditions, progress: Progress, out: Path, cluster: str
) -> list[str]:
    """Prints the table and writes the files; returns the broken promises."""
    runs, planned = played.runs, played.planned
    summary = summarise(runs)
    broken = broken_promises(runs, summary)
    models = " and ".join(dict.fromkeys(call.model for call in planned))
    title = f"TTFT of one agent session over {models} ({cluster})"
    progress.show(demo_table(runs, title))
    for line in closing_lines(summary):
        progress.say(line)
    facts = summary_json(
        summary, conditions=seen, planned=planned, phases_s=progress.phases_s, broken=broken
    )
    write_files(out, runs, planned, facts, title)
    for line in broken:
        progress.say(f"NOT KEPT: {line}")
    spent = ", ".join(f"{name} {spent_s:.0f} s" for name, spent_s in progress.phases_s.items())
    progress.say(f"time: {spent}")
    return broken
