"""Text of others on a terminal: names, errors and answers may hold what a terminal obeys.

Hosts: the commands of coordinator.cli."""

from __future__ import annotations

from typing import Final
from unicodedata import category

_LAYOUT: Final = "\n\t"
_OBEYED: Final = {"Cc", "Cs"}
"""Control characters; and halves of characters, which no terminal can be sent."""


def printable(text: str) -> str:
    """The same, with what a terminal would take for a command shown as it is written in code."""
    return "".join(
        ascii(char)[1:-1] if category(char) in _OBEYED and char not in _LAYOUT else char
        for char in text
    )


def in_cell(text: str) -> str:
    """For one line of a table."""
    return " ".join(printable(text).split())
