"""Who may call: API keys by their digest, the tenants they belong to, and limits of their own.

The document is a file or an environment variable that the configuration names; keys themselves are
never written down. Host: coordinator.__main__."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError

from configs.errors import ConfigError
from configs.messages import dotted, problems_of
from configs.schema import LimitsConfig, Strict
from configs.strict_yaml import NotYaml, read_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

    from configs.schema import CoordinatorConfig

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class KeyEntry(Strict):
    name: Name
    """How usage and logs call it."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """`printf %s KEY | sha256sum`. Keys are long and random: nobody can try them out."""
    tenant: Name
    """Keys of one tenant share sessions and caches; tenants share nothing."""
    operator: bool = False
    """May see every tenant, register and drain instances, and change parameters."""
    limits: LimitsConfig | None = None
    """Instead of `coordinator.limits`."""


class TenantEntry(Strict):
    shadow_tokens_per_hour: int | None = Field(default=None, ge=1)
    """Instead of `coordinator.limits.shadow_tokens_per_hour`."""


class KeyFile(Strict):
    keys: list[KeyEntry] = Field(min_length=1)
    tenants: dict[Name, TenantEntry] = Field(default_factory=dict)


def load_keys(
    config: CoordinatorConfig, environment: Mapping[str, str] = os.environ
) -> KeyFile | None:
    """None: the configuration names no keys, and every token is a tenant. Raises ConfigError."""
    if config.keys_path is not None:
        return _parsed(config.keys_path, _text_of(Path(config.keys_path)))
    if config.keys_variable is not None:
        text = environment.get(config.keys_variable)
        if text is None:
            where = "coordinator.keys_variable"
            raise ConfigError([f"{where}: ${config.keys_variable} is not set; nobody could call"])
        return _parsed(f"${config.keys_variable}", text)
    return None


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: must be UTF-8 text: {error.reason}"]) from error


def _parsed(where: str, text: str) -> KeyFile:
    try:
        document, problems = read_yaml(text)
        found = KeyFile.model_validate_json(json.dumps(document), strict=True)
    except NotYaml as error:
        raise ConfigError([f"{where}: not YAML: {error}"]) from error
    except ValidationError as error:
        told = [f"{dotted(path)}: {text}" for path, text in problems_of(error, KeyFile)]
        raise ConfigError([f"{where}: {problem}" for problem in told]) from None
    problems += _doubles(found)
    if problems:
        raise ConfigError([f"{where}: {problem}" for problem in problems])
    return found


def _doubles(found: KeyFile) -> list[str]:
    fields: dict[str, Any] = {
        "name": Counter(entry.name for entry in found.keys),
        "sha256": Counter(entry.sha256 for entry in found.keys),
    }
    return [
        f"keys: {field} must be different for each key, got {value!r} {times} times"
        for field, values in fields.items()
        for value, times in values.items()
        if times > 1
    ]
