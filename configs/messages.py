"""One line per mistake: YAML path, what was given, what is allowed. Host: configs.load."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

Path = tuple[str | int, ...]

UNKNOWN_KEY = "unknown key"
MASK = "(hidden)"
_SECRET_NAME = re.compile(r"secret|password|passwd|api_?key|credential|(^|_)token$", re.IGNORECASE)


def is_secret(name: object) -> bool:
    return _SECRET_NAME.search(str(name)) is not None


def masked(value: Any, name: object = "") -> Any:
    """A copy whose secrets are replaced; `name` is the key that holds the value."""
    if isinstance(value, dict):
        return {key: masked(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [masked(item, name) for item in value]
    return MASK if isinstance(value, str) and value and is_secret(name) else value


def dotted(path: Path) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".") or "(whole file)"


def problems_of(error: ValidationError, root: type[BaseModel]) -> list[tuple[Path, str]]:
    """Path and text of every mistake that pydantic found."""
    return [_problem(details, root) for details in error.errors()]


def _problem(details: ErrorDetails, root: type[BaseModel]) -> tuple[Path, str]:
    path, parent = _yaml_path(details["loc"], root)
    match details["type"]:
        case "extra_forbidden":
            return path, f"{UNKNOWN_KEY}; known keys are {_keys(parent)}"
        case "missing":
            return path, "is missing"
        case "union_tag_invalid":
            context = details["ctx"]
            kind = ", ".join(context["expected_tags"].replace("'", "").split(", "))
            return (*path, "kind"), f"must be one of {kind}, got {context['tag']!r}"
        case "union_tag_not_found":
            return (*path, "kind"), "is missing"
    return path, f"{_rule(details['msg'])}, got {_given(path, details['input'])}"


def _rule(message: str) -> str:
    rule = message.removeprefix("Value error, ").replace("Input should be", "must be")
    rule = rule.replace("must be an object", "must be a mapping")
    return rule[0].lower() + rule[1:]


def _given(path: Path, value: object) -> str:
    if isinstance(value, Mapping) and value:
        return "a mapping"
    if isinstance(value, list) and value:
        return "a list"
    hidden = path and is_secret(path[-1])
    return MASK if hidden or "@" in str(value) else repr(value)


def _yaml_path(location: Path, root: type[BaseModel]) -> tuple[Path, Any]:
    """Without the union tags that pydantic puts in; and the type that holds the last part."""
    path: list[str | int] = []
    holder: Any = root
    current: Any = root
    for part in location:
        tagged = _member(current, part)
        if tagged is not None:
            current = tagged
            continue
        path.append(part)
        holder, current = current, _child(current, part)
    return tuple(path), holder


def _member(annotation: Any, tag: object) -> Any:
    """The union member whose `kind` is `tag`; None if this is no such union."""
    for candidate in get_args(annotation):
        kind = getattr(candidate, "model_fields", {}).get("kind")
        if kind is not None and tag in get_args(kind.annotation):
            return candidate
    return None


def _child(annotation: Any, part: object) -> Any:
    fields = getattr(annotation, "model_fields", None)
    if fields is not None:
        return _given_kind(fields[part].annotation) if part in fields else None
    arguments = get_args(annotation)
    return arguments[-1] if arguments else None


def _given_kind(annotation: Any) -> Any:
    """Of a value that may be left out."""
    kinds = get_args(annotation)
    given = [kind for kind in kinds if kind is not NoneType]
    return given[0] if len(given) == 1 < len(kinds) else annotation


def _keys(holder: Any) -> list[str]:
    return sorted(getattr(holder, "model_fields", {}))
