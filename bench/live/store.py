"""The run's folder: what makes it resumable cell by cell, and what keeps different runs apart.

out/bench/live/run.json               the hash of everything that a result depends on
               calibration.json       measured once
               sessions-r1.json       the recorded answers of a repeat
               load0.3-off-r1.jsonl   a finished cell; it appears whole or not at all"""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from bench.live.records import Calibration, CellResult, RecordedSession

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from bench.live.cells import Cell
    from bench.live.settings import Settings

FORMAT_VERSION = 1
Value = TypeVar("Value")


class ResultsMixed(Exception):
    """The folder holds cells of a run with other settings: choose another one, or --fresh."""


def run_hash(settings: Settings, config_yaml: str, machine: str) -> str:
    facts: dict[str, Any] = {
        "version": FORMAT_VERSION,
        "settings": asdict(settings),
        "config": config_yaml,
        "machine": machine,
    }
    return hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()[:16]


class Store:
    def __init__(self, folder: Path, digest: str, *, fresh: bool = False) -> None:
        """Raises ResultsMixed."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        if fresh:
            for path in folder.glob("*.json*"):
                path.unlink()
        known = self._read("run.json", dict[str, str])
        if known is not None and known["hash"] != digest:
            raise ResultsMixed(
                f"{folder} holds a run with hash {known['hash']}, this one has {digest} (other "
                "settings, configuration or machine): take another --result-dir, or --fresh to "
                "delete what is there"
            )
        self._write("run.json", {"hash": digest})

    def calibration(self) -> Calibration | None:
        return self._read("calibration.json", Calibration)

    def keep_calibration(self, calibration: Calibration) -> None:
        self._write("calibration.json", calibration)

    def sessions(self, repeat: int) -> Mapping[str, RecordedSession] | None:
        found = self._read(f"sessions-r{repeat}.json", list[RecordedSession])
        return None if found is None else {session.key: session for session in found}

    def keep_sessions(self, repeat: int, sessions: list[RecordedSession]) -> None:
        self._write(f"sessions-r{repeat}.json", sessions)

    def cell(self, cell: Cell) -> CellResult | None:
        path = self._folder / f"{cell.name}.jsonl"
        return CellResult.from_lines(path.read_bytes()) if path.exists() else None

    def keep_cell(self, cell: Cell, result: CellResult) -> None:
        self._write_bytes(f"{cell.name}.jsonl", result.to_lines())

    def _read(self, name: str, kind: type[Value]) -> Value | None:
        path = self._folder / name
        return msgspec.json.decode(path.read_bytes(), type=kind) if path.exists() else None

    def _write(self, name: str, value: object) -> None:
        text = msgspec.json.format(msgspec.json.encode(value), indent=2)
        self._write_bytes(name, text + b"\n")

    def _write_bytes(self, name: str, text: bytes) -> None:
        # A run may be killed at any moment: a name means that the file is whole.
        part = self._folder / f".{name}.part"
        with part.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self._folder / name)
