"""What the demo leaves in its output folder."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from bench.demo.chart import text_chart, write_png

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.demo.place import Conditions
    from bench.demo.records import PlannedCall
    from bench.demo.summary import Runs, Summary

COMPARED = (
    "off: shadow off, history recorded. on: the same prompts, models, gaps and output lengths "
    "with shadow on. floor: the same call with the whole earlier history sent to its model before "
    "(waited for, not timed), stopped after a few tokens: only TTFT is read. again: the first "
    "calls once more, shadow off. Each run has a bearer token of its own, hence empty caches. TTFT "
    "is measured by the client, first non-empty token minus send. history_tokens: prompt tokens "
    "that existed before the call. Cached shares are sums over the calls, cached_tokens as the "
    "engines report them."
)


def summary_json(
    summary: Summary,
    *,
    conditions: Conditions,
    planned: Sequence[PlannedCall],
    phases_s: dict[str, float],
    broken: Sequence[str],
) -> dict[str, Any]:
    return asdict(summary) | {
        "route": [call.model for call in planned],
        "gaps_s": [round(call.gap_s, 3) for call in planned],
        "phases_s": phases_s,
        "total_s": round(sum(phases_s.values()), 1),
        "conditions": conditions.to_json(),
        "compared": COMPARED,
        "broken_promises": list(broken),
    }


def write_files(
    folder: Path, runs: Runs, planned: Sequence[PlannedCall], summary: dict[str, Any], title: str
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "summary.json", summary)
    _write_json(folder / "session.json", _transcript(planned))
    rows = [
        row.to_json() for run in (runs.off, runs.on, runs.floor, runs.again) for row in run.rows
    ]
    (folder / "calls.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    write_png(runs, title, folder / "ttft.png")
    (folder / "ttft.txt").write_text(text_chart(runs, title), encoding="utf-8")


def _transcript(planned: Sequence[PlannedCall]) -> list[dict[str, Any]]:
    """The session as it was played: what each call added, and what was answered."""
    return [
        {
            "call": call.call,
            "model": call.model,
            "action": call.action,
            "new_messages": list(call.messages if call.call == 1 else call.messages[-1:]),
            "output": call.output_text,
        }
        for call in planned
    ]


def _write_json(path: Path, value: object) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
