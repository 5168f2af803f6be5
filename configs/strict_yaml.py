"""YAML that means one thing: no duplicate keys, keys are text, only `true`/`false` are booleans.

PyYAML follows YAML 1.1, where `controller: off` is False and `1:30` is 90; the resolver below is
the core schema of YAML 1.2. Problems are collected, so that one run shows all.

Host: configs.load."""

from __future__ import annotations

import re
from typing import Any

import yaml


class NotYaml(ValueError):
    """The text cannot be read at all; the message says where."""


_CORE_SCHEMA = (
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own class attribute

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.problems: list[str] = []

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        if isinstance(node, yaml.MappingNode):
            self._check_keys(node)
        return super().construct_mapping(node, deep)

    def _check_keys(self, node: yaml.MappingNode) -> None:
        first_line: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                self.problems.append(
                    f"line {line}: a key must be text, got {_shown(key)}; quote it"
                )
            elif key.value in first_line:
                self.problems.append(
                    f"line {line}: duplicate key {key.value!r}; it is already on line "
                    f"{first_line[key.value]}"
                )
            else:
                first_line[key.value] = line


for _name, _pattern, _first in _CORE_SCHEMA:
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_name}", re.compile(rf"^(?:{_pattern})$"), [*_first, ""]
    )


def read_yaml(text: str) -> tuple[Any, list[str]]:
    """The document and what is wrong with its keys; raises NotYaml."""
    try:
        loader = _Loader(text)
        return loader.get_single_data(), loader.problems
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        raise NotYaml(f"{where}: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise NotYaml(" ".join(str(error).split())) from error
    except RecursionError:
        raise NotYaml("nested too deeply") from None


def _shown(node: yaml.Node) -> str:
    return repr(node.value) if isinstance(node, yaml.ScalarNode) else "a collection"
