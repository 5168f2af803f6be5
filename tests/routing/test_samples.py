"""Rows of every format, and what is said about wrong ones."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from routing.samples import Sample, SamplesInvalid, read_samples
from routing.step_view import step_view
from tests.routing.routing_rig import PAIR, a_row, write_jsonl

if TYPE_CHECKING:
    from pathlib import Path


def one(path: Path) -> Sample:
    (row,) = read_samples([path], PAIR).rows
    return row


def test_a_row_of_a_session(tmp_path: Path) -> None:
    row = a_row("t", 2, "read", 0.0, 1.0) | {"prompt_tokens": 90, "output_tokens": 10, "p_leg": 1}
    sample = one(write_jsonl(tmp_path / "a.jsonl", [row]))
    assert (sample.task, sample.session, sample.call) == ("t", "/session-t", 2)
    assert (sample.small_score, sample.large_score, sample.tokens) == (0.0, 1.0, 100)
    assert sample.view == step_view(json.dumps(row["prompt"]).encode())


def test_a_session_is_its_own_task_if_none_is_named(tmp_path: Path) -> None:
    row = a_row("t", 2, "read", 0.0, 1.0) | {"task": None}
    assert one(write_jsonl(tmp_path / "a.jsonl", [row])).task == "/session-t"


def test_a_matrix_as_llmrouter_has_it(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    rows = [{"question": "why?", "scores": {"small": 1.0, "large": 0.0, "other": 1.0}}] * 2
    path.write_text(json.dumps(rows))
    samples = read_samples([path], PAIR).rows
    assert [sample.task for sample in samples] == ["1", "2"]
    assert samples[0].view.texts.tail == ("why?",)
    assert samples[0].tokens == pytest.approx(1.0)


def test_a_matrix_as_a_table_with_or_without_texts(tmp_path: Path) -> None:
    with_text, without = tmp_path / "a.csv", tmp_path / "b.csv"
    with_text.write_text("task,question,small,large\nmath,why?,1.0,0\n")
    without.write_text("task,query_chars,small,large\nmath,400,1.0,0\n")
    assert one(with_text).view.texts.tail == ("why?",)
    sample = one(without)
    assert (sample.task, sample.has_prompt, sample.tokens) == ("math", False, pytest.approx(100))


def test_a_call_log_without_prompts_keeps_the_numbers(tmp_path: Path) -> None:
    view = step_view(b'"hello"')
    row = a_row("t", 1, "read", 1.0, 1.0) | {"numbers": asdict(view.numbers)}
    del row["prompt"]
    sample = one(write_jsonl(tmp_path / "a.jsonl", [row]))
    assert sample.view.numbers == view.numbers
    assert not sample.has_prompt


def test_scores_may_come_in_a_second_file(tmp_path: Path) -> None:
    logged = [a_row("t", call, "read", 0, 0) | {"scores": None} for call in (1, 2)]
    log = write_jsonl(tmp_path / "log.jsonl", logged)
    label = {"session_id": "session-t", "call": 2, "scores": {"small": 0.25, "large": 1}}
    scores = write_jsonl(tmp_path / "scores.jsonl", [label])
    read = read_samples([log], PAIR, scores)
    assert [(sample.call, sample.small_score) for sample in read.rows] == [(2, 0.25)]
    assert read.unscored == 1


GOOD = a_row("t", 1, "read", 1.0, 1.0)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (GOOD | {"call": "one"}, r"rows.jsonl:2: Expected .*int.*call"),
        (GOOD | {"scores": {"small": "x"}}, r"rows.jsonl:2: Expected .*float"),
        (GOOD | {"prompt": None, "numbers": {"log_steps": 1}}, "rows.jsonl:2: numbers must be"),
        ({"scores": GOOD["scores"], "task": "t"}, "rows.jsonl:2: has neither prompt nor numbers"),
        ({"scores": GOOD["scores"], "prompt": "x"}, "rows.jsonl:2: has neither task nor session"),
        ([], "rows.jsonl:2: Expected"),
    ],
    ids=["call", "score", "numbers", "no_prompt", "no_task", "no_object"],
)
def test_a_wrong_row_is_named(tmp_path: Path, row: Any, message: str) -> None:
    with pytest.raises(SamplesInvalid, match=message):
        read_samples([write_jsonl(tmp_path / "rows.jsonl", [GOOD, row])], PAIR)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "task,small,large\nm,1,x\n", "a.csv:2: large must be a number, got 'x'"),
        ("a.csv", "task,small\nm,1\n", r"a.csv:2: has no value in the columns \['large'\]"),
        ("a.csv", "query_chars,small,large\n-1,1,1\n", "query_chars must be >= 0, got -1"),
        ("a.csv", "task,small,large\nm,nan,1\n", "has neither prompt nor numbers|must be finite"),
        ("a.json", "{}", "a.json: Expected `array`"),
        ("a.jsonl", "{oops\n", "a.jsonl:1: "),
        ("a.jsonl", "\n", "no row of .* has scores of both 'small' and 'large'"),
        ("a.txt", "", "must end in .jsonl, .json or .csv"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(SamplesInvalid, match=message):
        read_samples([path], PAIR)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SamplesInvalid, match=r"no\.jsonl: cannot be read"):
        read_samples([tmp_path / "no.jsonl"], PAIR)
    with pytest.raises(SamplesInvalid, match=r"no\.jsonl: cannot be read"):
        read_samples([write_jsonl(tmp_path / "a.jsonl", [GOOD])], PAIR, tmp_path / "no.jsonl")


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.json", "a.csv"):
        (tmp_path / name).write_bytes(b"task,small,large\n\xff\xfe,1,1\n")
        with pytest.raises(SamplesInvalid, match=name):
            read_samples([tmp_path / name], PAIR)
