"""One row of each trace format: what its columns are called, and which values they may hold."""

from __future__ import annotations

import csv
from datetime import UTC, datetime
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from bench.workloads.trace import TraceInvalid

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MAX_TOKENS = 10_000_000
"""No prompt is longer; a column that was taken for another usually is."""
MAX_TIME_S = 1e11
MOONCAKE_BLOCK_TOKENS = 512
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT_COLUMNS = (
    "Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type",
)  # fmt: skip
BURSTGPT_OPTIONAL = ("Session ID", "Elapsed time")


class Place(NamedTuple):
    """Where in which file we are."""

    path: Path
    line: int

    def wrong(self, field: str, problem: str, value: object) -> TraceInvalid:
        return TraceInvalid(self.path, self.line, field, problem, value)


class Row(NamedTuple):
    """`arrival_s` counts from any origin that is the same for the whole file."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] | None = None
    session_id: str | None = None


if TYPE_CHECKING:
    Parser = Callable[[Place, str], Row | None]


def azure_parser(place: Place, header: str) -> Parser:
    _columns(place, header, AZURE_COLUMNS)

    def row(place: Place, line: str) -> Row:
        timestamp, context, generated = _cells(place, line, AZURE_COLUMNS)
        return Row(
            _timestamp_s(place, timestamp),
            _tokens(place, "ContextTokens", context),
            _tokens(place, "GeneratedTokens", generated),
        )

    return row


def burstgpt_parser(place: Place, header: str) -> Parser:
    columns = _columns(place, header, BURSTGPT_COLUMNS, BURSTGPT_OPTIONAL)

    def row(place: Place, line: str) -> Row | None:
        cells = dict(zip(columns, _cells(place, line, columns), strict=True))
        arrival_s = _seconds(place, "Timestamp", cells["Timestamp"])
        # A response of no token is how the trace records a failed request.
        response = _tokens(place, "Response tokens", cells["Response tokens"], least=0)
        least = 1 if response else 0
        request = _tokens(place, "Request tokens", cells["Request tokens"], least=least)
        total = _tokens(place, "Total tokens", cells["Total tokens"], least=0)
        if total != request + response:
            expected = f"must be {request} + {response}"
            raise place.wrong("Total tokens", expected, cells["Total tokens"])
        if response == 0:
            return None
        session_id = cells.get("Session ID")
        if session_id == "":
            session_id = f"line-{place.line}"  # outside any session: one of its own
        return Row(arrival_s, request, response, session_id=session_id)

    return row


def mooncake_row(place: Place, line: str) -> Row:
    record = _object(place, line)
    input_tokens = _tokens(place, "input_length", record.get("input_length"))
    hash_ids = record.get("hash_ids")
    if not isinstance(hash_ids, list) or not all(type(one) is int for one in hash_ids):
        raise place.wrong("hash_ids", "must be a list of whole numbers", hash_ids)
    blocks = -(-input_tokens // MOONCAKE_BLOCK_TOKENS)
    if len(hash_ids) != blocks:
        expected = f"must hold {blocks} hashes, one per {MOONCAKE_BLOCK_TOKENS} tokens"
        raise place.wrong("hash_ids", expected, len(hash_ids))
    return Row(
        _seconds(place, "timestamp", record.get("timestamp")) / 1000,
        input_tokens,
        _tokens(place, "output_length", record.get("output_length")),
        hash_ids=tuple(hash_ids),
    )


def session_row(place: Place, line: str) -> Row:
    record = _object(place, line)
    session_id = record.get("session_id")
    if not isinstance(session_id, str) or not session_id:
        raise place.wrong("session_id", "must be a text that is not empty", session_id)
    usage = record.get("usage")
    if not isinstance(usage, dict):
        raise place.wrong("usage", "must be an object", usage)
    return Row(
        _seconds(place, "created", record.get("created")),
        _tokens(place, "usage.prompt_tokens", usage.get("prompt_tokens")),
        _tokens(place, "usage.completion_tokens", usage.get("completion_tokens")),
        session_id=session_id,
    )


def _columns(
    place: Place, header: str, required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> tuple[str, ...]:
    found = tuple(cell.strip() for cell in next(csv.reader([header]), []))
    allowed = set(required) | set(optional)
    if not set(required) <= set(found) <= allowed or len(set(found)) != len(found):
        raise place.wrong("header", f"must be {','.join(required)}", ",".join(found))
    # Azure's rows are read by position, so a changed order would swap the lengths.
    if not optional and found != required:
        raise place.wrong("header", f"must be {','.join(required)}", ",".join(found))
    return found


def _cells(place: Place, line: str, columns: tuple[str, ...]) -> list[str]:
    cells = next(csv.reader([line]))
    if len(cells) != len(columns):
        raise place.wrong("row", f"must have {len(columns)} cells", line.strip())
    return cells


def _object(place: Place, line: str) -> dict[str, Any]:
    try:
        record = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise place.wrong("line", f"must be JSON ({error})", line.strip()[:80]) from error
    if not isinstance(record, dict):
        raise place.wrong("line", "must be a JSON object", record)
    return record


def _tokens(place: Place, field: str, value: Any, *, least: int = 1) -> int:
    """A JSON number must be whole already; a CSV cell is text."""
    problem = f"must be a whole number from {least} to {MAX_TOKENS}"
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        count = int(value) if len(value) < 20 else MAX_TOKENS + 1
    elif type(value) is int:
        count = value
    else:
        raise place.wrong(field, problem, value)
    if not least <= count <= MAX_TOKENS:
        raise place.wrong(field, problem, value)
    return count


def _seconds(place: Place, field: str, value: Any) -> float:
    problem = f"must be a time from 0 to {MAX_TIME_S:.0e}"
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise place.wrong(field, problem, value)
    try:
        time_s = float(value)
    except ValueError as error:
        raise place.wrong(field, problem, value) from error
    if not (isfinite(time_s) and 0 <= time_s <= MAX_TIME_S):
        raise place.wrong(field, problem, value)
    return time_s


def _timestamp_s(place: Place, value: str) -> float:
    """Digits beyond microseconds are cut; a time without a zone is taken as UTC."""
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError as error:
        expected = "must be a time like 2023-11-16 18:15:46.6805900"
        raise place.wrong("TIMESTAMP", expected, value) from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
