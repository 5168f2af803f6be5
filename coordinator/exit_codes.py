"""What the exit code of a command says to a script. They are part of the interface: none changes.

Hosts: the commands of coordinator.cli."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    """Asked and not done; `status`: something is not ready."""
    USAGE = 2
    """The command line itself is wrong; typer's own errors have it too."""
    UNREACHABLE = 3
    """No coordinator answers there."""
    NOT_FOUND = 4
    """No such session, instance, model or log."""
    DENIED = 5
    """The key is unknown, or not an operator's."""
    TIMED_OUT = 6
    """Begun, and not at its end in the time that was given."""
