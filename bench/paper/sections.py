"""Parts of RESULTS.md that have runs of their own: what they found is kept beside the cells, and
the next page shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from bench.paper.accuracy import Choice, Spot
from bench.paper.accuracy_figure import by_benchmark, cut_pct
from bench.paper.published import published
from bench.paper.readings import METRICS
from bench.paper.sweeps import SWEEPS
from bench.study.compare import BY_KEY, Estimate
from bench.study.jobs import write_whole
from bench.study.table import estimate_json, shown
from bench.workloads.score_matrix import prices

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.paper.readings import ReadingRow

SENSITIVITIES = "sensitivity.json"
ACCURACY = "accuracy.json"
READINGS = "readings.json"


def keep_spots(spots: Sequence[Spot], result_dir: Path) -> None:
    document = [
        {
            "benchmark": spot.benchmark,
            "choice": str(spot.choice),
            **{name: estimate_json(getattr(spot, name)) for name in Spot._fields[2:]},
        }
        for spot in spots
    ]
    write_json(result_dir / ACCURACY, document)


def accuracy_section(result_dir: Path, folder: str) -> list[str]:
    if not (result_dir / ACCURACY).exists():
        return []
    spots = [
        Spot(one["benchmark"], Choice(one["choice"]), *(_read(one[name]) for name in SPOT_VALUES))
        for one in msgspec.json.decode((result_dir / ACCURACY).read_bytes())
    ]
    told = {one.benchmark: one for one in published().cost_cuts}
    lines = [
        "## Accuracy and token cost of routing (figure 7)", "",
        f"![Accuracy against token cost]({folder}accuracy.png)", "",
        "The paper's score matrices are not published, so the scores are LLMRouter's "
        "(6,108 queries x 9 models) and each model of a pair is spoken for by one of its columns: "
        f"{_stand_ins()}. The router knows the scores and sends each call to the model with the "
        "highest score per dollar; a session walks through the queries of its task. The paper's "
        "router is 6.6 to 13.6 points more accurate than always the dearer model, and costs 56 to "
        "72% of it without shadow, 44 to 51% with (section 5.3).", "",
        "| benchmark | calls go to | accuracy, % | cost / dearer model | switch calls, % | "
        "shadow on the bill | paper |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for benchmark, found in by_benchmark(spots).items():
        cut = cut_pct(found)
        for choice, spot in found.items():
            values = [shown(getattr(spot, name)) for name in SPOT_VALUES]
            bill, paper = "", ""
            if choice is Choice.SHADOW and cut is not None:
                bill = f"{-cut:+.1f}%"
                paper = f"{-told[benchmark].cost_cut_pct:+g}% ({told[benchmark].source})"
            lines.append(f"| {benchmark} | {choice} | {' | '.join(values)} | {bill} | {paper} |")
    return [*lines, ""]


SPOT_VALUES = ("accuracy_pct", "cost_share", "switches_pct")


def keep_readings(rows: Sequence[ReadingRow], result_dir: Path) -> None:
    document = [
        {**row._asdict(), "values": [estimate_json(value) for value in row.values]} for row in rows
    ]
    write_json(result_dir / READINGS, document)


def readings_section(result_dir: Path) -> list[str]:
    if not (result_dir / READINGS).exists():
        return []
    labels = " | ".join(f"{BY_KEY[metric].label}, {BY_KEY[metric].unit}" for metric in METRICS)
    lines = [
        "## What the ladder depends on", "",
        "The four setups of the sensitivities, colocated, median hour, one seed; the mean of the "
        "four, over sessions of one pair each: read the order and the size, not the digits. The "
        "first is what the engines of this project do, the second is the study above; the paper "
        "leaves open which of the first four it has. The last three have what it does not: an "
        "entry of the normal class that a shadow may displace itself goes before shadows do.", "",
        f"| reading | approach | {labels} |",
        "|---|---|" + "---|" * len(METRICS),
    ]  # fmt: skip
    for row in msgspec.json.decode((result_dir / READINGS).read_bytes()):
        values = " | ".join(shown(_read(value)) for value in row["values"])
        lines.append(f"| {row['reading']} | {row['approach']} | {values} |")
    return [*lines, ""]


def sensitivity_section(result_dir: Path, folder: str) -> list[str]:
    if not (result_dir / SENSITIVITIES).exists():
        return []
    points = msgspec.json.decode((result_dir / SENSITIVITIES).read_bytes())
    told = {(one.sweep, one.approach, one.at): one for one in published().sensitivities}
    labels = {sweep.key: sweep.label for sweep in SWEEPS}
    lines = [
        "## Sensitivities (figures 9, 15 and 16)", "",
        f"![Sensitivities]({folder}sensitivity.png)", "",
        "| setting | at | metric | approach | ours | paper | source |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for point in points:
        paper = told.get((point["sweep"], point["approach"], point["at"]))
        if paper is not None and point["ours"] is not None:
            lines.append(
                f"| {labels[point['sweep']]} | {point['at']:g} | {point['metric']} | "
                f"{point['approach']} | {shown(_read(point['ours']))} | {paper.value:g} | "
                f"{paper.source} |"
            )
    return [*lines, ""]


def write_json(path: Path, document: Any) -> None:
    text = msgspec.json.format(msgspec.json.encode(document), indent=1)
    write_whole(path, text + b"\n")


def _read(found: dict[str, Any] | None) -> Estimate | None:
    if found is None:
        return None
    return Estimate(found["mean"], found["standard_error"], found["cells"])


def _stand_ins() -> str:
    return ", ".join(f"{column} for {model}" for model, column in prices().stand_ins.items())
