"""Why a number of ours differs from the paper's, where we know. What nobody has looked into says
so."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from bench.paper.tables import Row

UNKNOWN = "Not explained yet."


class Reason(NamedTuple):
    """Of the rows that have these values; None is any."""

    text: str
    metric: str | None = None
    group: str | None = None
    cluster: str | None = None
    approach: str | None = None

    def holds_for(self, row: Row) -> bool:
        return all(
            wanted is None or wanted == getattr(row, name)
            for name, wanted in self._asdict().items()
            if name != "text"
        )


REASONS: tuple[Reason, ...] = ()
"""The first that holds is given."""


def reason_for(row: Row) -> str:
    return next((reason.text for reason in REASONS if reason.holds_for(row)), UNKNOWN)
