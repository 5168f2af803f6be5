"""Steps whose two models' scores are known, read from logged sessions or from a score matrix.

    .jsonl   a row per call: the coordinator's call log, or any rows with these fields
    .json    a list of the same rows (LLMRouter's preprocessed matrices are such lists)
    .csv     a row per query, a column per model

A row has `scores` ({"small": 1, "large": 0.5}), and `prompt` (a text, or a chat's messages;
LLMRouter says `question`) or else the call log's `numbers`. `task` is what cross-validation keeps
together; if it is missing, the session is the task. Scores of a call log come in a second file,
rows of `session_id`, `call`, `scores`. Host: routing.cli."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from routing.step_view import NUMBERS, StepNumbers, StepTexts, StepView, step_view

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Pair = tuple[str, str]
"""Small, large."""
Scores = dict[tuple[str | None, int | None], dict[str, float]]

CHARS_PER_TOKEN: Final = 4.0


class SamplesInvalid(ValueError):
    """The text names the file, the row and the field."""


class Row(msgspec.Struct, kw_only=True):
    """Further fields are ignored: those of a call log are many."""

    tenant: str = ""
    session_id: str | None = None
    call: int | None = None
    task: str | None = None
    prompt: msgspec.Raw = msgspec.Raw(b"null")
    question: str | None = None
    numbers: dict[str, float] | None = None
    scores: dict[str, float] | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    task: str
    session: str | None
    call: int
    view: StepView
    has_prompt: bool
    small_score: float
    large_score: float
    tokens: float
    """Prompt and output, where they are known; else the prompt's characters over four."""


@dataclass(frozen=True, slots=True)
class Samples:
    rows: list[Sample]
    unscored: int
    """Rows that lack a score of one of the two models."""


def read_samples(paths: list[Path], pair: Pair, scores_path: Path | None = None) -> Samples:
    """Raises SamplesInvalid."""
    scores = {} if scores_path is None else _scores(scores_path)
    found: list[Sample] = []
    unscored = 0
    for path in paths:
        for where, row in _rows(path, pair):
            own = scores.get((row.session_id, row.call), row.scores) or {}
            if any(model not in own for model in pair):
                unscored += 1
            else:
                found.append(_sample(where, row, own, pair))
    if not found:
        raise SamplesInvalid(
            f"no row of {', '.join(map(str, paths))} has scores of both {pair[0]!r} and {pair[1]!r}"
        )
    return Samples(found, unscored)


def _sample(where: str, row: Row, scores: dict[str, float], pair: Pair) -> Sample:
    for model in pair:
        if not math.isfinite(scores[model]):
            raise SamplesInvalid(f"{where}: scores.{model} must be finite, got {scores[model]}")
    # Two tenants' sessions may have one name.
    session = None if row.session_id is None else f"{row.tenant}/{row.session_id}"
    task = row.task if row.task is not None else session
    if task is None:
        raise SamplesInvalid(f"{where}: has neither task nor session_id: folds are made by them")
    view = _view(where, row)
    tokens = math.expm1(view.numbers.log_prompt_chars) / CHARS_PER_TOKEN
    if row.prompt_tokens is not None:
        tokens = row.prompt_tokens + (row.output_tokens or 0)
    return Sample(
        task=task,
        session=session,
        call=row.call or 0,
        view=view,
        has_prompt=_prompt(row) is not None,
        small_score=scores[pair[0]],
        large_score=scores[pair[1]],
        tokens=tokens,
    )


def _view(where: str, row: Row) -> StepView:
    prompt = _prompt(row)
    if prompt is not None:
        return step_view(prompt)
    if row.numbers is None:
        raise SamplesInvalid(f"{where}: has neither prompt nor numbers")
    if sorted(row.numbers) != sorted(NUMBERS):
        raise SamplesInvalid(
            f"{where}: numbers must be {list(NUMBERS)}, got {list(row.numbers)}; it is of another "
            "version of this program"
        )
    return StepView(StepTexts(), StepNumbers(**row.numbers))


def _prompt(row: Row) -> bytes | None:
    if row.question is not None:
        return msgspec.json.encode(row.question)
    prompt = bytes(row.prompt)
    return None if prompt == b"null" else prompt


def _scores(path: Path) -> Scores:
    return {
        (row.session_id, row.call): row.scores
        for _, row in _rows(path, None)
        if row.scores is not None
    }


def _rows(path: Path, pair: Pair | None) -> Iterator[tuple[str, Row]]:
    try:
        match path.suffix:
            case ".jsonl":
                yield from _jsonl(path)
            case ".json":
                yield from _json(path)
            case ".csv" if pair is not None:
                yield from _csv(path, pair)
            case _:
                formats = ".jsonl or .json" if pair is None else ".jsonl, .json or .csv"
                raise SamplesInvalid(f"{path}: must end in {formats}")
    except OSError as error:
        raise SamplesInvalid(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SamplesInvalid(f"{path}: is not UTF-8: {error}") from error


def _jsonl(path: Path) -> Iterator[tuple[str, Row]]:
    decoder = msgspec.json.Decoder(Row)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                where = f"{path}:{number}"
                yield where, _decoded(where, decoder, line)


def _json(path: Path) -> Iterator[tuple[str, Row]]:
    rows = _decoded(str(path), msgspec.json.Decoder(list[Row]), path.read_bytes())
    for number, row in enumerate(rows, 1):
        # Such a list of questions has no sessions: each question is a task of its own.
        row.task = row.task or row.session_id or str(number)
        yield f"{path}: row {number}", row


def _decoded(where: str, decoder: msgspec.json.Decoder[Any], data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise SamplesInvalid(f"{where}: {error}") from None


def _csv(path: Path, pair: Pair) -> Iterator[tuple[str, Row]]:
    with path.open(newline="", encoding="utf-8") as file:
        for number, cells in enumerate(csv.DictReader(file), 2):
            where = f"{path}:{number}"
            missing = [model for model in pair if not cells.get(model)]
            if missing:
                raise SamplesInvalid(f"{where}: has no value in the columns {missing}")
            yield (
                where,
                Row(
                    task=cells.get("task") or str(number),
                    question=cells.get("question") or cells.get("prompt"),
                    numbers=_length_alone(where, cells),
                    scores={model: _number(where, model, cells[model]) for model in pair},
                ),
            )


def _length_alone(where: str, cells: dict[str, str]) -> dict[str, float] | None:
    """A published matrix may have dropped the texts."""
    if not cells.get("query_chars"):
        return None
    chars = _number(where, "query_chars", cells["query_chars"])
    if not chars >= 0:
        raise SamplesInvalid(f"{where}: query_chars must be >= 0, got {chars:g}")
    one = dict.fromkeys(NUMBERS, 0.0)
    return one | {"log_prompt_chars": math.log1p(chars), "log_messages": math.log1p(1)}


def _number(where: str, column: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SamplesInvalid(f"{where}: {column} must be a number, got {text!r}") from None
