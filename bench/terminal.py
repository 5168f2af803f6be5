"""What the commands that start engines share: how they end, and how wide they print."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from types import FrameType


def unwind_on_sigterm() -> None:
    """Engines are stopped by leaving their block: SIGTERM must unwind as Ctrl-C does."""
    signal.signal(signal.SIGTERM, _interrupt)


def wide_console(width: int, *, stderr: bool = False) -> Console:
    """In a file or a pipe, where rich assumes 80 columns, a table gets the width it needs."""
    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=width)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
