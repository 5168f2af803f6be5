"""A YAML file becomes one frozen ClusterConfig, or an error that names every mistake in it.

The hardware profile fills in what the file leaves out: shadow caps, start coefficients, engine
flags and environment. Hosts: every `__main__`, the command line, the local cluster, the demo."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from configs import checks
from configs.document import read_document
from configs.errors import ConfigError
from configs.messages import UNKNOWN_KEY, dotted, masked, problems_of
from configs.override import override
from configs.profile import load_profile, profile_names
from configs.schema import (
    ClusterConfig,
    CoordinatorConfig,
    InstanceConfig,
    ModelConfig,
    RouterConfig,
    ShadowConfig,
)
from policy.vocabulary import Controller

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from configs.profile import Profile

__all__ = ["ConfigError", "effective_yaml", "load_config", "load_profile"]

Item = TypeVar("Item")
Tree = dict[str, Any]
Problem = checks.Problem
_SECTIONS = tuple(ClusterConfig.model_fields)
_ONE_CREDIT = (Controller.HARVEST, Controller.PREDICTIVE)
ONE_CREDIT_DELTA = 0.1
"""The paper's default where one credit pays for every busy iteration; the profiles hold that of
`harvest-slo`, whose credit is for routed calls alone."""


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> ClusterConfig:
    """Raises ConfigError. An override is `shadow.controller=off`: a YAML path and a YAML value."""
    name = str(path)
    document, problems = read_document(Path(path), _SECTIONS)
    # A second key of one name hides the first: what then does not fit together is no mistake of its
    # own.
    each_key_counts = not problems
    for text in overrides:
        problems += override(document, text)
    filled, found = _filled_in(document, Path(path).resolve().parent)
    config, more = _validated(filled, check_together=each_key_counts)
    problems += [f"{dotted(where)}: {text}" for where, text in [*found, *more]]
    if problems or config is None:
        raise ConfigError([f"{name}: {problem}" for problem in problems])
    return config


def effective_yaml(config: ClusterConfig) -> str:
    """The configuration with every default filled in and every secret masked."""
    values = masked(config.model_dump(mode="json"))
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100)


def _filled_in(document: Tree, folder: Path) -> tuple[Tree, list[Problem]]:
    """The document over its hardware profile."""
    name, known = document.get("profile"), profile_names()
    problems: list[Problem] = []
    if "profile" in document and name not in known:
        problems.append((("profile",), f"must be one of {known}, got {name!r}"))
    # With an unknown profile any known one will do: it only keeps the other messages to the point.
    profile = load_profile(name if name in known else known[0])
    filled = dict(document)
    filled["shadow"] = _over(_shadow_defaults(profile, document), document.get("shadow"))
    if document.get("host_tier") is not None:
        defaults = profile.host_tier.model_dump(mode="json")
        filled["host_tier"] = _over(defaults, document["host_tier"])
    if isinstance(document.get("models"), dict):
        models = document["models"].items()
        filled["models"] = {key: _model_filled_in(value, profile, folder) for key, value in models}
    if isinstance(document.get("instances"), dict):
        instances = document["instances"].items()
        filled["instances"] = {key: _instance_filled_in(one, folder) for key, one in instances}
    if isinstance(document.get("router"), dict):
        filled["router"] = _router_filled_in(document["router"], folder)
    if isinstance(document.get("coordinator"), dict):
        filled["coordinator"] = _coordinator_filled_in(document["coordinator"], folder)
    return filled, problems


def _router_filled_in(router: Tree, folder: Path) -> Tree:
    path = router.get("path")
    # That of a Python class is no file.
    if router.get("kind") != "learned" or not isinstance(path, str) or not path:
        return router
    return {**router, "path": os.path.normpath(folder / path)}


def _coordinator_filled_in(coordinator: Tree, folder: Path) -> Tree:
    filled = dict(coordinator)
    for name in ("keys_path", "learned_path"):
        if isinstance(filled.get(name), str):
            filled[name] = os.path.normpath(folder / filled[name])
    log = filled.get("call_log")
    if isinstance(log, dict) and isinstance(log.get("path"), str) and log["path"]:
        filled["call_log"] = {**log, "path": os.path.normpath(folder / log["path"])}
    if isinstance(filled.get("tls"), dict):
        paths = filled["tls"].items()
        filled["tls"] = {
            name: os.path.normpath(folder / path) if isinstance(path, str) and path else path
            for name, path in paths
        }
    return filled


def _shadow_defaults(profile: Profile, document: Tree) -> Tree:
    defaults: Tree = profile.shadow.model_dump(mode="json")
    given = document.get("shadow")
    if isinstance(given, dict) and given.get("controller") in _ONE_CREDIT:
        defaults["delta"] = ONE_CREDIT_DELTA
    return defaults


def _model_filled_in(model: Any, profile: Profile, folder: Path) -> Any:
    if not isinstance(model, dict):
        return model
    filled = dict(model)
    filled["engine_args"] = _over(profile.engine_args, model.get("engine_args"))
    filled["env"] = _over(profile.env, model.get("env"))
    if model.get("step_time") is None:
        start = profile.step_time_of(str(model.get("dtype")))
        filled["step_time"] = start.model_dump(mode="json")
    path = model.get("path")
    if isinstance(path, str) and (path.startswith((".", "/")) or (folder / path).exists()):
        filled["path"] = os.path.normpath(folder / path)
    return filled


def _instance_filled_in(instance: Any, folder: Path) -> Any:
    if not isinstance(instance, dict) or not isinstance(instance.get("trace_path"), str):
        return instance
    # The engine has a working directory of its own.
    return {**instance, "trace_path": os.path.normpath(folder / instance["trace_path"])}


def _over(defaults: Mapping[str, Any], given: Any) -> Any:
    if given is None:
        return dict(defaults)
    return {**defaults, **given} if isinstance(given, dict) else given


def _validated(tree: Tree, *, check_together: bool) -> tuple[ClusterConfig | None, list[Problem]]:
    # As JSON, because only there does pydantic's strict mode take text for an enum; strict, because
    # "5", true and 5 are different things in a file.
    try:
        config = ClusterConfig.model_validate_json(json.dumps(tree), strict=True)
    except ValidationError as error:
        problems = problems_of(error, ClusterConfig)
        parts = _valid_parts(tree, problems) if check_together else None
        return None, [*problems, *(checks.check(parts) if parts else [])]
    return config, checks.check(checks.Parts.of(config)) if check_together else []


def _valid_parts(tree: Tree, problems: Sequence[Problem]) -> checks.Parts:
    tree = _without_unknown_keys(tree, problems)
    models, instances = _mapping(tree.get("models")), _mapping(tree.get("instances"))
    return checks.Parts(
        model_names=tuple(models),
        instance_names=tuple(instances),
        models=_valid_items(models, ModelConfig),
        instances=_valid_items(instances, InstanceConfig),
        shadow=_valid(tree["shadow"], TypeAdapter(ShadowConfig)),
        router=_valid(tree.get("router"), TypeAdapter[RouterConfig](RouterConfig)),
        coordinator=_valid(tree.get("coordinator", {}), TypeAdapter(CoordinatorConfig)),
    )


def _without_unknown_keys(tree: Tree, problems: Sequence[Problem]) -> Tree:
    copied: Tree = json.loads(json.dumps(tree))
    for path, text in problems:
        if text.startswith(UNKNOWN_KEY):
            parent: Any = copied
            for part in path[:-1]:
                parent = parent[part]
            del parent[path[-1]]
    return copied


def _mapping(value: Any) -> Tree:
    return value if isinstance(value, dict) else {}


def _valid_items(items: Tree, kind: type[Item]) -> dict[str, Item]:
    checked = {name: _valid(value, TypeAdapter(kind)) for name, value in items.items()}
    return {name: value for name, value in checked.items() if value is not None}


def _valid(value: Any, kind: TypeAdapter[Item]) -> Item | None:
    try:
        return kind.validate_json(json.dumps(value), strict=True)
    except ValidationError:
        return None
