"""The document of API keys: read from a file or the environment, strict, and never printed."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from configs.errors import ConfigError
from configs.keys import load_keys
from configs.load import effective_yaml, load_config
from configs.schema import CoordinatorConfig

if TYPE_CHECKING:
    from pathlib import Path

DIGEST = sha256(b"key").hexdigest()
ONE = f"keys: [{{name: alice, sha256: {DIGEST}, tenant: team}}]"


def test_without_a_name_of_a_document_there_are_no_keys() -> None:
    assert load_keys(CoordinatorConfig()) is None


def test_keys_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(ONE + "\ntenants: {team: {shadow_tokens_per_hour: 1000}}")
    keys = load_keys(CoordinatorConfig(keys_path=str(path)))
    assert keys is not None
    assert [(entry.name, entry.operator) for entry in keys.keys] == [("alice", False)]
    assert keys.tenants["team"].shadow_tokens_per_hour == 1000


def test_keys_come_from_the_environment() -> None:
    config = CoordinatorConfig(keys_variable="KEYS")
    keys = load_keys(config, {"KEYS": ONE})
    assert keys is not None
    assert keys.keys[0].tenant == "team"
    with pytest.raises(ConfigError, match="KEYS is not set"):
        load_keys(config, {})


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("keys: []", "at least 1"),
        ("nothing: 1", "unknown key"),
        (f"keys: [{{name: alice, sha256: {DIGEST}}}]", "keys\\[0\\].tenant: is missing"),
        ("keys: [{name: alice, sha256: key, tenant: t}]", "sha256"),
        (ONE.replace("]", f", {{name: bob, sha256: {DIGEST}, tenant: t}}]"), "different"),
        (ONE.replace("alice", "a b"), "name"),
        ("[", "not YAML"),
    ],
)
def test_a_wrong_document_is_refused_by_place(text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        load_keys(CoordinatorConfig(keys_variable="KEYS"), {"KEYS": text})


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nobody.yaml: cannot be read"):
        load_keys(CoordinatorConfig(keys_path=str(tmp_path / "nobody.yaml")))


def test_paths_are_relative_to_the_configuration_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "profile: cpu\nmodels: {m: {path: x, max_model_len: 64, slo: {ttft_s: 1, tpot_s: 1}}}\n"
        "instances: {m-1: {model: m, role: colocated, port: 8001}}\n"
        "coordinator: {keys_path: keys.yaml, tls: {certificate: c.pem, private_key: /k.pem}}\n"
    )
    config = load_config(path)
    assert config.coordinator.keys_path == str(tmp_path / "keys.yaml")
    assert config.coordinator.tls is not None
    assert config.coordinator.tls.certificate == str(tmp_path / "c.pem")
    assert config.coordinator.tls.private_key == "/k.pem"
    assert "keys.yaml" in effective_yaml(config)
