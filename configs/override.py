"""`shadow.controller=off`: one value of the configuration, changed from outside.

Host: configs.load."""

from __future__ import annotations

from typing import Any

from configs.strict_yaml import NotYaml, read_yaml


def override(document: dict[str, Any], text: str) -> list[str]:
    """Changes the document in place; answers what is wrong with the text."""
    path, equals, value_text = text.partition("=")
    if not equals or not path.strip():
        return [f"override {text!r} must be YAML.PATH=VALUE"]
    try:
        value, problems = read_yaml(value_text)
    except NotYaml as error:
        return [f"override {text!r}: the value is not YAML: {error}"]
    holder, key = document, path.strip()
    while (step := _first_key(holder, key)) is not None:
        below = holder.setdefault(step, {})
        if not isinstance(below, dict):
            return [f"override {text!r}: {step!r} holds a value, not a mapping"]
        holder, key = below, key[len(step) + 1 :]
    holder[key] = value
    return [f"override {text!r}: {problem}" for problem in problems]


def _first_key(holder: dict[str, Any], path: str) -> str | None:
    """The part of the path to step into; names have dots (`qwen2.5`), so a key that exists wins."""
    if path in holder or "." not in path:
        return None
    existing = [key for key in holder if path.startswith(f"{key}.")]
    return max(existing, key=len, default=path.split(".", 1)[0])
