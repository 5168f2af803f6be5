"""How much shadow work a router without memory wastes at best, beside what was wasted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.paper.published import pairs
from bench.study.approaches import ApproachName
from bench.workloads.routers import table1_switch_probability
from bench.workloads.sessions import session_kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.paper.tables import Row

SHOWN = (ApproachName.HARVEST_SLO, ApproachName.HARVEST_SLO_HOST)


def bound_pct(switch_probability: float, calls: float) -> float:
    """Of the tokens shadowed after each of `calls` calls, those before whose session's end no
    switch comes: the mean of (1-p)^j over the calls that are left."""
    if switch_probability == 0:
        return 100.0
    none_share: float = (1 - switch_probability) ** calls
    return 100 * (1 - none_share) / (switch_probability * calls)


def waste_section(rows: Sequence[Row]) -> list[str]:
    found = {
        (row.group, row.cluster, row.approach): row.ours
        for row in rows
        if row.metric == "unused_shadow_pct" and row.ours is not None
    }
    if not found:
        return []
    lines = [
        "## Shadow tokens never used, and the bound", "",
        "A router that leaves its model with the same probability p at every step gives nothing to "
        "learn: of what is shadowed for a session of L calls (1-(1-p)^L)/(pL) is never used, "
        "however good everything else is. p and L are Table 1's means.", "",
        "| benchmark | bound, % | cluster | approach | never used, % |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for benchmark in pairs().setups:
        published = session_kind(benchmark).published
        bound = bound_pct(table1_switch_probability(published), published.calls_per_session)
        for (group, cluster, approach), ours in found.items():
            if group == benchmark and approach in SHOWN:
                lines.append(
                    f"| {benchmark} | {bound:.1f} | {cluster} | {approach} | {ours.mean:.1f} |"
                )
    return [*lines, ""]
