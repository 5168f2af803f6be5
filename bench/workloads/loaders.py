"""Reads traces of other people into `Trace`: plain files or gzip, every value checked.

A trace is data that nobody here has made: a number that is missing, negative or of another column
must not become a workload. The first mistake ends the reading, with file, line, field and value."""

from __future__ import annotations

import gzip
import zlib
from array import array
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.workloads import formats
from bench.workloads.trace import Trace, TraceInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.workloads.formats import Parser, Row


class TraceFormat(StrEnum):
    AZURE = "azure"
    """CSV `TIMESTAMP,ContextTokens,GeneratedTokens` (2023 and 2024)."""
    MOONCAKE = "mooncake"
    """JSONL with `timestamp` (ms), `input_length`, `output_length`, `hash_ids`."""
    BURSTGPT = "burstgpt"
    """CSV `Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type`, with or without
    `Session ID` and `Elapsed time`."""
    SESSIONS = "sessions"
    """JSONL, one finished call of a session a line, as OpenAI's API answers it: `session_id`,
    `created` (Unix seconds), `usage`."""


_HEADED = {TraceFormat.AZURE: formats.azure_parser, TraceFormat.BURSTGPT: formats.burstgpt_parser}
_LINES: dict[TraceFormat, Parser] = {
    TraceFormat.MOONCAKE: formats.mooncake_row,
    TraceFormat.SESSIONS: formats.session_row,
}


def load_trace(path: str | Path, trace_format: TraceFormat | str) -> Trace:
    """Requests that the file holds out of order are sorted by arrival; ties keep their order."""
    path = Path(path)
    trace_format = TraceFormat(trace_format)
    if trace_format in _LINES:
        parse, lines = _LINES[trace_format], _lines(path)
    else:
        parse, lines = _headed(path, _HEADED[trace_format])
    columns = _Columns()
    for number, line in lines:
        if line.strip():
            columns.add(parse(formats.Place(path, number), line))
    if not len(columns.arrival_s):
        raise TraceInvalid(path, 1, "file", "must hold at least one request", "")
    return columns.to_trace(path.name)


class _Columns:
    def __init__(self) -> None:
        self.arrival_s = array("d")
        self.input_tokens = array("q")
        self.output_tokens = array("q")
        self.hash_ids: list[tuple[int, ...]] = []
        self.session_ids: list[str] = []
        self.skipped_rows = 0

    def add(self, row: Row | None) -> None:
        if row is None:
            self.skipped_rows += 1
            return
        self.arrival_s.append(row.arrival_s)
        self.input_tokens.append(row.input_tokens)
        self.output_tokens.append(row.output_tokens)
        if row.hash_ids is not None:
            self.hash_ids.append(row.hash_ids)
        if row.session_id is not None:
            self.session_ids.append(row.session_id)

    def to_trace(self, name: str) -> Trace:
        arrival_s = np.array(self.arrival_s)
        order = np.argsort(arrival_s, kind="stable")
        return Trace(
            name=name,
            arrival_s=arrival_s[order] - arrival_s.min(),
            input_tokens=np.array(self.input_tokens)[order],
            output_tokens=np.array(self.output_tokens)[order],
            hash_ids=tuple(self.hash_ids[i] for i in order) if self.hash_ids else (),
            session_ids=tuple(self.session_ids[i] for i in order) if self.session_ids else (),
            skipped_rows=self.skipped_rows,
        )


def _headed(
    path: Path, parser_of: Callable[[formats.Place, str], Parser]
) -> tuple[Parser, Iterator[tuple[int, str]]]:
    lines = _lines(path)
    number, header = next(lines, (1, ""))
    return parser_of(formats.Place(path, number), header), lines


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered from 1, as an editor shows them."""
    number = 0
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline=None) as file:
            for number, line in enumerate(file, 1):
                yield number, line
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TraceInvalid(
            path, number + 1, "file", "must be whole gzip data", str(error)
        ) from error
    except UnicodeDecodeError as error:
        raise TraceInvalid(path, number + 1, "file", "must be UTF-8", str(error)) from error
