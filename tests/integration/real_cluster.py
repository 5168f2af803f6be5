"""Shipped configurations on free ports, and engines without our plug-in to compare with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from engine.launch import engine_command
from tests.free_ports import free_ports

if TYPE_CHECKING:
    from configs.schema import ClusterConfig

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / ".models"
START_TIMEOUT_S = 420.0
OURS = ("--scheduler-cls", "--additional-config")


def on_free_ports(name: str, folder: Path, only: tuple[str, ...] = (), **changes: Any) -> Path:
    """A copy of `configs/NAME.yaml` with other ports; `only` keeps the instances of these names.

    `changes` are merged into its sections."""
    source = ROOT / "configs" / f"{name}.yaml"
    document = yaml.safe_load(source.read_text())
    if only:
        document["instances"] = {key: document["instances"][key] for key in only}
        kept = {instance["model"] for instance in document["instances"].values()}
        document["models"] = {key: document["models"][key] for key in kept}
    for model in document["models"].values():
        model["path"] = str((source.parent / model["path"]).resolve())
    ports = iter(free_ports(3 * len(document["instances"]) + 1))
    for instance in document["instances"].values():
        instance["port"] = next(ports)
        instance["metrics_port"] = next(ports)
        if "kv_port" in instance:
            instance["kv_port"] = next(ports)
    document["coordinator"] = {"port": next(ports)}
    for section, values in changes.items():
        _merge(document.setdefault(section, {}), values)
    target = folder / source.name
    target.write_text(yaml.safe_dump(document))
    return target


def plain_command(config_path: Path, config: ClusterConfig, name: str) -> list[str]:
    """The same engine as stock vLLM: neither our scheduler nor its parameters."""
    command = engine_command(config, name)
    argv: list[str] = []
    arguments = iter(command.argv)
    for argument in arguments:
        if argument in OURS:
            next(arguments)
        else:
            argv.append(argument)
    # `env` becomes the server: the pid stays the same.
    return ["env", *(f"{key}={value}" for key, value in command.env.items()), *argv]


def _merge(target: dict[str, Any], values: dict[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        else:
            target[key] = value
