"""What every model scores on every query: LLMRouter's matrix, read from a file that the user has,
and the prices that belong to it."""

from __future__ import annotations

import csv
import gzip

# Read at run time too: msgspec decodes by these annotations.
from collections.abc import Mapping  # noqa: TC003
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from bench.workloads.trace import TraceInvalid

if TYPE_CHECKING:
    from collections.abc import Sequence

TASK_COLUMN = "task"
FIRST_COLUMNS = ("split", TASK_COLUMN, "query_chars", "query_tokens_est")


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    dollars_per_million_tokens: Mapping[str, float]
    """By column of the matrix."""
    stand_ins: Mapping[str, str]
    """The column that speaks for a model of the simulator; results name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreMatrix:
    models: tuple[str, ...]
    dollars_per_million_tokens: tuple[float, ...]
    scores_by_task: Mapping[str, np.ndarray]
    """Queries x models, in the order of the file."""

    def of_task(self, task: str) -> np.ndarray:
        if task not in self.scores_by_task:
            raise ValueError(f"no query of task {task!r}; there are {sorted(self.scores_by_task)}")
        return self.scores_by_task[task]


@cache
def prices() -> Prices:
    data = resources.files("bench.workloads").joinpath("data", "models_priced.json").read_bytes()
    return msgspec.json.decode(data, type=Prices)


def stand_ins(models: Sequence[str]) -> tuple[str, ...]:
    """Columns for models of the simulator; two models may not share one, or nothing is routed."""
    known = prices().stand_ins
    missing = [model for model in models if model not in known]
    if missing:
        raise ValueError(f"no stand-in for {missing}; there are {sorted(known)}")
    columns = tuple(known[model] for model in models)
    if len(set(columns)) != len(columns):
        raise ValueError(f"{list(models)} share a stand-in: {list(columns)}")
    return columns


def load_score_matrix(path: str | Path, models: Sequence[str]) -> ScoreMatrix:
    """Of the CSV's models, those named, in that order."""
    path = Path(path)
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        columns = _columns(path, next(rows, []), models)
        by_task: dict[str, list[list[float]]] = {}
        for row in rows:
            if len(row) != columns.count:
                raise TraceInvalid(
                    path, rows.line_num, "row", f"must have {columns.count} cells", row
                )
            scores = [
                _score(path, rows.line_num, model, row[at])
                for model, at in zip(models, columns.of_models, strict=True)
            ]
            by_task.setdefault(row[columns.task], []).append(scores)
    if not by_task:
        raise TraceInvalid(path, 2, "file", "must hold at least one query", "")
    listed = prices().dollars_per_million_tokens
    return ScoreMatrix(
        models=tuple(models),
        dollars_per_million_tokens=tuple(listed[model] for model in models),
        scores_by_task={task: np.array(scores) for task, scores in by_task.items()},
    )


@dataclass(frozen=True, slots=True)
class _Columns:
    count: int
    task: int
    of_models: tuple[int, ...]


def _columns(path: Path, header: list[str], models: Sequence[str]) -> _Columns:
    if tuple(header[: len(FIRST_COLUMNS)]) != FIRST_COLUMNS:
        expected = f"must begin with {','.join(FIRST_COLUMNS)}"
        raise TraceInvalid(path, 1, "header", expected, ",".join(header))
    listed = prices().dollars_per_million_tokens
    for model in models:
        if model not in header:
            raise TraceInvalid(path, 1, "header", f"must have a column {model}", ",".join(header))
        if model not in listed:
            raise ValueError(f"no price of {model!r}; there are {sorted(listed)}")
    return _Columns(
        len(header), header.index(TASK_COLUMN), tuple(header.index(model) for model in models)
    )


def _score(path: Path, line: int, model: str, cell: str) -> float:
    try:
        score = float(cell)
    except ValueError as error:
        raise TraceInvalid(path, line, model, "must be a score from 0 to 1", cell) from error
    if not 0 <= score <= 1:
        raise TraceInvalid(path, line, model, "must be a score from 0 to 1", cell)
    return score
