"""The last lines of a cluster's logs, and what comes after them. Host: coordinator.cli (`logs`)."""

from __future__ import annotations

import os
from typing import IO, TYPE_CHECKING, Final

from coordinator import run_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

LOG_POLL_S: Final = 0.25
_READ_BYTES: Final = 4 * 1024 * 1024
"""Looked at for the last lines; of one log at a time."""


def log_files(run_dir: Path) -> dict[str, Path]:
    """By instance; the supervisor's, where there is one, too."""
    folder = run_dir / "logs"
    state = run_state.read_state(run_dir)
    names = [] if state is None else [name for name, one in state.instances.items() if one.log]
    return {
        name: folder / f"{name}.log"
        for name in (*names, "supervisor")
        if (folder / f"{name}.log").exists()
    }


class LogTail:
    """Reads several logs; each line says whose it is, unless there is only one. To be closed."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        width = max(len(name) for name in files)
        named = len(files) > 1
        self._logs = [
            _Log(path, f"{name:{width}} | " if named else "") for name, path in files.items()
        ]

    def close(self) -> None:
        for log in self._logs:
            log.close()

    def last(self, lines: int) -> Iterator[str]:
        for log in self._logs:
            yield from log.last(lines)

    def news(self) -> Iterator[str]:
        """Whole lines only: the rest of one that is being written comes with its end."""
        for log in self._logs:
            yield from log.news()


class _Log:
    def __init__(self, path: Path, mark: str) -> None:
        self._path = path
        self._mark = mark
        self._file: IO[bytes] = path.open("rb")
        self._begun = b""

    def close(self) -> None:
        self._file.close()

    def last(self, lines: int) -> list[str]:
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(0, size - _READ_BYTES))
        found = self._lines(self._file.read())
        return found[-lines:] if lines else []

    def news(self) -> list[str]:
        found = self._lines(self._file.read())
        if self._was_replaced():
            # An instance that was started again writes another file.
            self._file.close()
            self._file, self._begun = self._path.open("rb"), b""
            found += self._lines(self._file.read())
        return found

    def _lines(self, data: bytes) -> list[str]:
        *whole, self._begun = (self._begun + data).split(b"\n")
        return [self._mark + line.decode(errors="replace").rstrip("\r") for line in whole]

    def _was_replaced(self) -> bool:
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False  # between its two lives
        return there.st_ino != os.fstat(self._file.fileno()).st_ino
