"""A YAML file becomes one frozen SimConfig, or an error that names every mistake in it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from bench.sim.hardware import architectures
from bench.study.schema import DrawnSessions, MarkovRouter, SimConfig
from bench.workloads.routers import MAX_MODELS, MIN_MODELS
from bench.workloads.sessions import session_kinds
from configs.document import read_document
from configs.errors import ConfigError
from configs.messages import dotted, problems_of
from configs.override import override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Problem = tuple[tuple[str | int, ...], str]
_FILES = (
    ("normal", "traffic"),
    ("sessions", "workload"),
    ("sessions", "router"),
)
"""Sections that may name a file, relative to the configuration."""


def load_sim_config(path: Path | str, overrides: Sequence[str] = ()) -> SimConfig:
    """Raises ConfigError. An override is `normal.rho=0.5`: a YAML path and a YAML value."""
    document, problems = read_document(Path(path), tuple(SimConfig.model_fields))
    for text in overrides:
        problems += override(document, text)
    _resolve_files(document, Path(path).resolve().parent)
    found: list[Problem] = []
    config: SimConfig | None = None
    try:
        # As JSON, because only there does pydantic's strict mode take text for an enum.
        config = SimConfig.model_validate_json(json.dumps(document), strict=True)
        found += checks(config)
    except ValidationError as error:
        found += problems_of(error, SimConfig)
    problems += [f"{dotted(where)}: {text}" for where, text in found]
    if problems or config is None:
        raise ConfigError([f"{path}: {problem}" for problem in problems])
    return config


def sim_yaml(config: SimConfig) -> str:
    """With every default filled in."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, width=100)


def checks(config: SimConfig) -> list[Problem]:
    """What must fit together."""
    return [*_pools(config), *_sessions(config), *_requests(config)]


def _pools(config: SimConfig) -> Iterator[Problem]:
    known = sorted(architectures())
    for model, pool in config.models.items():
        if model not in known:
            yield ("models", model), f"has no architecture here; known are {known}"
        split = pool.prefill > 0 and pool.decode > 0
        half = (pool.prefill > 0) != (pool.decode > 0)
        if (pool.colocated > 0) == split or half:
            yield (
                ("models", model),
                "must have colocated instances, or prefill and decode ones; got "
                f"colocated {pool.colocated}, prefill {pool.prefill}, decode {pool.decode}",
            )


def _sessions(config: SimConfig) -> Iterator[Problem]:
    sessions = config.sessions
    if sessions is None:
        return
    if not MIN_MODELS <= len(config.models) <= MAX_MODELS:
        yield (
            ("sessions",),
            f"are routed between {MIN_MODELS} to {MAX_MODELS} models, got {len(config.models)}",
        )
    drawn = isinstance(sessions.workload, DrawnSessions)
    if isinstance(sessions.workload, DrawnSessions):
        known = sorted(session_kinds())
        if sessions.workload.benchmark not in known:
            yield (
                ("sessions", "workload", "benchmark"),
                f"must be one of {known}, got {sessions.workload.benchmark!r}",
            )
    router = sessions.router
    if not drawn and isinstance(router, MarkovRouter) and router.switch_probability is None:
        yield (
            ("sessions", "router", "switch_probability"),
            "is missing: recorded sessions have no published rate",
        )
    if router.kind == "fixed" and router.model not in config.models:
        yield (
            ("sessions", "router", "model"),
            f"must be one of {sorted(config.models)}, got {router.model!r}",
        )
    if not drawn and router.kind == "matrix":
        yield ("sessions", "router", "kind"), "matrix needs sessions that are drawn with a task"


def _requests(config: SimConfig) -> Iterator[Problem]:
    if config.normal is None and config.sessions is None:
        yield ("sessions",), "is missing, and so is normal: nothing would be sent"
    if config.max_batch_tokens < config.max_sequences:
        yield (
            ("max_batch_tokens",),
            f"must be at least max_sequences ({config.max_sequences}), "
            f"got {config.max_batch_tokens}",
        )


def _resolve_files(document: dict[str, Any], folder: Path) -> None:
    for section, part in _FILES:
        holder = document.get(section)
        named = holder.get(part) if isinstance(holder, dict) else None
        if isinstance(named, dict) and isinstance(named.get("path"), str):
            named["path"] = os.path.normpath(folder / named["path"])
