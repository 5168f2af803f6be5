"""The one form that every trace has after loading: columns of arrivals and lengths, and of what
ties requests together (block hashes or a session), if the trace tells it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path


class TraceInvalid(ValueError):
    """A trace cannot be used as it is; the message names file, line, field and value. Mend the
    file, or say another format."""

    def __init__(self, path: Path, line: int, field: str, problem: str, value: object) -> None:
        super().__init__(f"{path}:{line}: {field} {problem}, got {value!r}")
        self.path, self.line, self.field, self.value = path, line, field, value


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in order of arrival; the first one arrives at 0. Arrays are read-only.

    Columns and not objects: a week of Azure's conversation traffic has 27 million requests."""

    name: str
    arrival_s: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    hash_ids: tuple[tuple[int, ...], ...] = ()
    """Of each request's prompt blocks, equal hashes for equal prefixes; empty if not told."""
    session_ids: tuple[str, ...] = ()
    skipped_rows: int = 0
    """Rows that are no finished request (BurstGPT's failures)."""

    def __post_init__(self) -> None:
        count = len(self.arrival_s)
        assert count > 0, self.name
        assert count == len(self.input_tokens) == len(self.output_tokens), self.name
        assert len(self.hash_ids) in (0, count), self.name
        assert len(self.session_ids) in (0, count), self.name
        assert (np.diff(self.arrival_s) >= 0).all(), self.name
        for column in (self.arrival_s, self.input_tokens, self.output_tokens):
            column.flags.writeable = False

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def span_s(self) -> float:
        return float(self.arrival_s[-1] - self.arrival_s[0])

    @property
    def rate_per_s(self) -> float:
        """Mean over the span; requests that all came at once have no rate."""
        if self.span_s <= 0:
            raise ValueError(f"{self.name}: {len(self)} requests in no time have no rate")
        return (len(self) - 1) / self.span_s

    def between(self, start_s: float, end_s: float) -> Trace:
        """The requests that arrive in [start, end), from 0 again."""
        first, last = np.searchsorted(self.arrival_s, [start_s, end_s])
        if first == last:
            raise ValueError(f"{self.name}: no request arrives in {start_s} to {end_s} s")
        part = slice(int(first), int(last))
        return replace(
            self,
            arrival_s=self.arrival_s[part] - self.arrival_s[first],
            input_tokens=self.input_tokens[part].copy(),
            output_tokens=self.output_tokens[part].copy(),
            hash_ids=self.hash_ids[part],
            session_ids=self.session_ids[part],
        )
