"""YAML text means what it looks like."""

from __future__ import annotations

from typing import Any

import pytest

from configs.strict_yaml import NotYaml, read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("yes", "yes"),
        ("true", True),
        ("1:30", "1:30"),
        ("010", "010"),
        ("1_000", "1_000"),
        ("0x1F", 31),
        ("-3", -3),
        ("1e-3", 0.001),
        (".5", 0.5),
        (".inf", float("inf")),
        ("2026-01-01", "2026-01-01"),
        ("~", None),
        ("", None),
        ("'1'", "1"),
        ("{a: off, b: [1, no]}", {"a": "off", "b": [1, "no"]}),
    ],
)
def test_a_scalar_is_read_by_the_core_schema(text: str, value: Any) -> None:
    read, problems = read_yaml(f"key: {text}")
    assert read == {"key": value}
    assert type(read["key"]) is type(value)
    assert problems == []


def test_every_bad_key_is_reported_with_its_line() -> None:
    _, problems = read_yaml("a: 1\nb: {c: 1, c: 2}\na: 3\n7: x\ntrue: y\n")
    assert problems == [
        "line 3: duplicate key 'a'; it is already on line 1",
        "line 4: a key must be text, got '7'; quote it",
        "line 5: a key must be text, got 'true'; quote it",
        "line 2: duplicate key 'c'; it is already on line 2",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: b: c", "line 1, column 5: mapping values are not allowed here"),
        ("a: 1\n---\nb: 2", "line 2, column 1: but found another document"),
        ("a: !!python/object:x y", "line 1, column 4: could not determine a constructor"),
        ("a: \x00", "unacceptable character"),
        ("[" * 600, "nested too deeply"),
        ("? [1]\n: z", "line 1, column 3: found unhashable key"),
    ],
    ids=["syntax", "two_documents", "python_object", "control_character", "deep", "list_as_key"],
)
def test_what_cannot_be_read_says_where(text: str, message: str) -> None:
    with pytest.raises(NotYaml) as caught:
        read_yaml(text)
    assert str(caught.value).startswith(message)
