"""A YAML file as a mapping of JSON values, and what is wrong with its keys.

Hosts: configs.load, bench.study.load."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from configs.errors import ConfigError
from configs.strict_yaml import NotYaml, read_yaml

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def read_document(path: Path, sections: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Raises ConfigError where there is nothing to go on with."""
    try:
        document, problems = read_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: must be UTF-8 text: {error.reason}"]) from error
    except NotYaml as error:
        raise ConfigError([f"{path}: not YAML: {error}"]) from error
    if not isinstance(document, dict):
        raise ConfigError([f"{path}: must be a mapping with the keys {list(sections)}"])
    try:
        # Also gives every alias its own copy.
        return json.loads(json.dumps(document)), problems
    except ValueError as error:
        raise ConfigError([f"{path}: an alias must not refer to itself"]) from error
