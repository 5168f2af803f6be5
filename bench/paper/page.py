"""RESULTS.md: where our simulator agrees with the paper, where it does not, and why. Generated, so
that no number in it is older than the run it comes from. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from bench.paper.reasons import reason_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.paper.tables import Row

TOLERANCE_SHARE = 0.25
TOLERANCE_POINTS = 1.0
RATE_UNIT, RATE_POINTS = "% of tokens", 3.0
"""A quarter of a hit rate would be anything."""
ERRORS = 2.0


class Verdict(StrEnum):
    AGREES = "agrees"
    HIGHER = "ours is higher"
    LOWER = "ours is lower"
    UNSURE = "too uncertain"
    NOT_SIMULATED = "not simulated yet"


def verdict_of(row: Row) -> Verdict:
    """A difference within two standard errors may be none, and says nothing either way."""
    difference = row.difference
    if row.ours is None or difference is None or row.paper is None:
        return Verdict.NOT_SIMULATED
    if abs(difference) <= _tolerance(row.unit, row.paper):
        return Verdict.AGREES
    if abs(difference) <= ERRORS * (row.ours.standard_error or 0.0):
        return Verdict.UNSURE
    return Verdict.HIGHER if difference > 0 else Verdict.LOWER


def _tolerance(unit: str, paper: float) -> float:
    if unit == RATE_UNIT:
        return RATE_POINTS
    points = TOLERANCE_POINTS if unit.startswith(("%", "points")) else 0.0
    return max(TOLERANCE_SHARE * abs(paper), points)


def page(
    rows: Sequence[Row],
    about: Sequence[str],
    pictures: Mapping[str, str],
    more: Sequence[str] = (),
) -> str:
    """`pictures`: caption by path. `more`: whole sections that others add."""
    compared = [row for row in rows if row.paper is not None]
    by_verdict: dict[Verdict, list[Row]] = {verdict: [] for verdict in Verdict}
    for row in compared:
        by_verdict[verdict_of(row)].append(row)
    lines = ["# The paper's experiments on our simulator", ""]
    lines += [*about, "", *_counts(by_verdict, len(compared)), ""]
    lines += ["## Every number that the paper's text gives", "", *_table(compared), ""]
    lines += _disagreements(
        [row for row in compared if verdict_of(row) in (Verdict.HIGHER, Verdict.LOWER)]
    )
    for path, caption in pictures.items():
        lines += [f"## {caption}", "", f"![{caption}]({path})", ""]
    return "\n".join([*lines, *more]).rstrip() + "\n"


def _counts(by_verdict: Mapping[Verdict, Sequence[Row]], compared: int) -> list[str]:
    counts = ", ".join(f"{len(rows)} {verdict}" for verdict, rows in by_verdict.items())
    return [
        f"Of {compared} numbers: {counts}. A number agrees if it lies within "
        f"{100 * TOLERANCE_SHARE:.0f}% of the paper's value or {TOLERANCE_POINTS:g} point of a "
        f"percentage (a hit rate: {RATE_POINTS:g} points); it is too uncertain if the difference "
        f"is larger, but below {ERRORS:g} standard errors."
    ]


def _table(rows: Sequence[Row]) -> list[str]:
    lines = [
        "| metric | pairs | cluster | approach | ours | paper | difference | verdict | source |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        difference = "-" if row.difference is None else f"{row.difference:+.1f}"
        unit = "" if row.unit in ("%", "") else f" ({row.unit})"
        lines.append(
            f"| {row.label}{unit} | {row.group} | {row.cluster} | {row.approach} | "
            f"{ours_text(row)} | {row.paper:g} | {difference} | {verdict_of(row)} | {row.source} |"
        )
    return lines


def ours_text(row: Row) -> str:
    if row.ours is None:
        return "-"
    error = row.ours.standard_error
    return f"{row.ours.mean:.1f}" if error is None else f"{row.ours.mean:.1f} ± {error:.1f}"


def _disagreements(rows: Sequence[Row]) -> list[str]:
    if not rows:
        return []
    by_reason: dict[str, list[Row]] = {}
    for row in rows:
        by_reason.setdefault(reason_for(row), []).append(row)
    lines = ["## Where we do not agree, and why", ""]
    for reason, members in by_reason.items():
        names = "; ".join(
            f"{row.label}, {row.group}, {row.cluster}, {row.approach}: {ours_text(row)} against "
            f"{row.paper:g}"
            for row in members
        )
        lines.append(f"- {reason} ({names}.)")
    return [*lines, ""]
