"""What a user chooses for one demo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    config: Path
    out: Path
    base_url: str | None = None
    """A running coordinator of this configuration; None: start one."""
    seed: int = 7
    """Seed of the tool gaps."""
