"""Why an instance did not start, found in its log: the line with the cause, then the last lines.

A vLLM log ends with the API server's traceback ("Engine core initialization failed. See root
cause above"); the cause is the last line of the first traceback, often a hundred lines further
up."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

TAIL_LINES = 12
_READ_BYTES = 512 * 1024
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_PREFIX = re.compile(r"^(?:\([^)]*\)\s+)?(?:[A-Z]+ \d\d-\d\d [\d:]+ \[[^\]]*\]\s?)?")
_CAUSE = re.compile(r"^(?:[\w.]+(?:Error|Exception|Exit|Interrupt|Invalid)\b: .+|.*\berror: .+)$")
_SECOND_HAND = (
    "Engine core initialization failed",
    "KeyboardInterrupt",
    "failed to start",
    "cancelled",
)


class ClusterStartError(Exception):
    """The cluster did not start; everything that had been started is stopped again."""


def exit_text_of(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    return f"was killed by {signal.Signals(-code).name}"


def failure_text(name: str, what: str, log: Path) -> str:
    """What happened, why, the end of the log, and where the rest of it is."""
    if not log.exists():
        return f"{name} {what}"
    cause = cause_of(log)
    return "\n".join(
        [
            f"{name} {what}" + (f": {cause}" if cause else ""),
            f"  last lines of {log}:",
            *(f"  | {line}" for line in tail_of(log)),
        ]
    )


def cause_of(log: Path) -> str | None:
    """The line of the log that most likely says what went wrong."""
    causes = [line for line in _lines(log) if _CAUSE.match(line)]
    first_hand = [line for line in causes if not any(text in line for text in _SECOND_HAND)]
    return next(iter(first_hand or causes), None)


def tail_of(log: Path) -> list[str]:
    return _lines(log)[-TAIL_LINES:]


def last_line_of(log: Path) -> str:
    return next(reversed(_lines(log, 4096)), "")


def _lines(log: Path, read_bytes: int = _READ_BYTES) -> list[str]:
    """Lines without colours and without vLLM's process and time prefix, empty ones dropped."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - read_bytes))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    plain = (_PREFIX.sub("", _COLOURS.sub("", line)).rstrip() for line in text.splitlines())
    return [line for line in plain if line.strip()]
