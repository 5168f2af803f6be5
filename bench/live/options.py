"""What a user chooses for one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.live.cells import Cell
    from bench.live.settings import Settings

Topology = Literal["colocated", "pd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    config: Path
    folder: Path
    """Of this run's cells, logs and generated configurations."""
    settings: Settings
    wanted: Sequence[Cell]
    """The whole matrix, which a report is about."""
    chosen: Sequence[Cell]
    """What this run may do of it."""
    max_s: float = float("inf")
    """No cell begins that would probably end later than this."""
    fresh: bool = False
    topology: Topology = "colocated"
