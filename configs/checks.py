"""What must fit together in a cluster: names, roles, addresses, pairs. Host: configs.load.

Every check looks only at the parts that are valid by themselves, so that one run can show its
problems next to those of the schema."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from ipaddress import ip_network
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from configs.features import feature_problem
from configs.owned import OWNED_VARIABLES, flag_problem, owned_text
from configs.schema import (
    ClusterConfig,
    CoordinatorConfig,
    InstanceConfig,
    ModelConfig,
    RouterConfig,
    ScriptRouter,
    ShadowConfig,
)
from policy.slack import AUTO, MIN_AUTO_TOKENS
from policy.vocabulary import Role

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Problem = tuple[tuple[str | int, ...], str]

PAIRED_FLAGS = (
    "speculative_config",
    "kv_cache_dtype",
    "quantization",
    "disable_hybrid_kv_cache_manager",
    "disable_sliding_window",
    "enable_lora",
    "lora_modules",
)
"""Flags that decide what a KV block holds: P and D must agree, or D reads nonsense."""

VIRTUAL_MODEL = "auto"
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_INSTANCE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Also the name of its log file."""
_LOCAL_HOSTS = ("localhost", "0.0.0.0", "::", "::1", "[::]", "[::1]", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The valid parts of a configuration, and the names of all of them."""

    model_names: tuple[str, ...]
    instance_names: tuple[str, ...]
    models: Mapping[str, ModelConfig]
    instances: Mapping[str, InstanceConfig]
    shadow: ShadowConfig | None
    router: RouterConfig | None
    coordinator: CoordinatorConfig | None

    @classmethod
    def of(cls, config: ClusterConfig) -> Parts:
        return cls(
            model_names=tuple(config.models),
            instance_names=tuple(config.instances),
            models=config.models,
            instances=config.instances,
            shadow=config.shadow,
            router=config.router,
            coordinator=config.coordinator,
        )


def check(parts: Parts) -> list[Problem]:
    """All problems, in the order of the file's sections."""
    return [
        *_names(parts),
        *_shadow(parts),
        *_router(parts),
        *_instances(parts),
        *_roles(parts),
        *_coordinator(parts),
        *_addresses(parts),
        *_traces(parts),
        *_flags(parts),
        *_pairs(parts),
    ]


def _names(parts: Parts) -> Iterator[Problem]:
    for name in parts.model_names:
        if name == VIRTUAL_MODEL:
            yield ("models", name), "is the name by which a client asks the router to choose"
        elif not _MODEL_NAME.fullmatch(name):
            yield ("models", name), f"a model's name must match {_MODEL_NAME.pattern}"
    for name in parts.instance_names:
        if not _INSTANCE_NAME.fullmatch(name):
            yield ("instances", name), f"an instance's name must match {_INSTANCE_NAME.pattern}"


def _shadow(parts: Parts) -> Iterator[Problem]:
    if parts.shadow is None:
        return
    shadow = parts.shadow
    n_min_tokens = MIN_AUTO_TOKENS if shadow.n_min_tokens == AUTO else shadow.n_min_tokens
    if n_min_tokens > shadow.max_chunk_tokens:
        yield (
            ("shadow", "n_min_tokens"),
            f"must be at most shadow.max_chunk_tokens ({shadow.max_chunk_tokens}), "
            f"got {n_min_tokens}: no chunk would ever be granted",
        )
    if not shadow.iteration_cap_s and any(i.role is Role.PREFILL for i in parts.instances.values()):
        yield ("shadow", "iteration_cap_s"), "must be > 0 with prefill instances, got 0"
    for name, model in parts.models.items():
        if shadow.segment_tokens % model.block_size:
            yield (
                ("shadow", "segment_tokens"),
                f"must be a multiple of models.{name}.block_size ({model.block_size}), "
                f"got {shadow.segment_tokens}: only whole blocks are handed over",
            )
        if shadow.push_tokens < model.block_size:
            yield (
                ("shadow", "push_tokens"),
                f"must be at least models.{name}.block_size ({model.block_size}), "
                f"got {shadow.push_tokens}: only whole blocks are pushed",
            )


def _router(parts: Parts) -> Iterator[Problem]:
    if not isinstance(parts.router, ScriptRouter):
        return
    for index, model in enumerate(parts.router.models):
        if model not in parts.model_names:
            yield ("router", "models", index), _unknown_model(model, parts)


def _instances(parts: Parts) -> Iterator[Problem]:
    for name, instance in parts.instances.items():
        if instance.model not in parts.model_names:
            yield ("instances", name, "model"), _unknown_model(instance.model, parts)
        if instance.role is not Role.COLOCATED and instance.kv_port is None:
            yield (
                ("instances", name, "kv_port"),
                f"is missing; a {instance.role.value} instance exchanges KV over it",
            )


def _unknown_model(model: str, parts: Parts) -> str:
    return f"must be one of the models {sorted(parts.model_names)}, got {model!r}"


def _roles(parts: Parts) -> Iterator[Problem]:
    if len(parts.instances) < len(parts.instance_names):
        return  # the broken ones may be what is missing here
    for name in parts.model_names:
        roles = Counter(i.role for i in parts.instances.values() if i.model == name)
        prefill, decode = roles[Role.PREFILL], roles[Role.DECODE]
        counts = f"got {prefill} prefill, {decode} decode, {roles[Role.COLOCATED]} colocated"
        if not roles:
            yield (
                ("models", name),
                "has no instance; it needs one colocated or a prefill and a decode",
            )
        elif roles[Role.COLOCATED] and (prefill or decode):
            yield ("models", name), f"must be colocated or disaggregated, not both, {counts}"
        elif not roles[Role.COLOCATED] and not (prefill and decode):
            yield ("models", name), f"needs at least 1 prefill and 1 decode instance, {counts}"


def _coordinator(parts: Parts) -> Iterator[Problem]:
    coordinator = parts.coordinator
    if coordinator is None:
        return
    if coordinator.keys_path is not None and coordinator.keys_variable is not None:
        yield ("coordinator", "keys_variable"), "must not be set beside coordinator.keys_path"
    for index, upstream in enumerate(coordinator.upstreams):
        host, slash, _ = upstream.partition("/")
        if slash and not _is_network(upstream):
            yield ("coordinator", "upstreams", index), f"must be a network, got {upstream!r}"
        elif not slash and ":" in host and not host.rpartition(":")[2].isdigit():
            yield ("coordinator", "upstreams", index), f"must be host or host:port, got {host!r}"


def _is_network(text: str) -> bool:
    try:
        ip_network(text)
    except ValueError:
        return False
    return True


def _addresses(parts: Parts) -> Iterator[Problem]:
    taken: dict[tuple[str, int], str] = {}
    for path, host, port in _listeners(parts):
        address = ("localhost" if host in _LOCAL_HOSTS or host.startswith("127.") else host, port)
        text = ".".join(path)
        if address in taken:
            yield path, f"{host}:{port} is already used by {taken[address]}"
        else:
            taken[address] = text


def _listeners(parts: Parts) -> Iterator[tuple[tuple[str, ...], str, int]]:
    if parts.coordinator is not None:
        yield ("coordinator", "port"), parts.coordinator.host, parts.coordinator.port
    for name, instance in parts.instances.items():
        host = instance.host
        if instance.attach_url is None:
            yield ("instances", name, "port"), host, instance.port
        else:
            url = urlsplit(instance.attach_url)
            port = url.port or (443 if url.scheme == "https" else 80)
            host = url.hostname or ""
            yield ("instances", name, "attach_url"), host, port
        if instance.metrics_port is not None:
            yield ("instances", name, "metrics_port"), host, instance.metrics_port
        if instance.kv_port is not None and instance.role is not Role.COLOCATED:
            yield ("instances", name, "kv_port"), instance.kv_host, instance.kv_port


def _traces(parts: Parts) -> Iterator[Problem]:
    taken: dict[str, str] = {}
    for name, instance in parts.instances.items():
        if instance.trace_path is None:
            continue
        where = ("instances", name, "trace_path")
        if not instance.trace_path.endswith(".jsonl"):
            yield where, "must end in .jsonl"
        if instance.role is Role.DECODE:
            yield where, "must not be set on a decode instance: it computes no shadow tokens"
        elif instance.trace_path in taken:
            yield where, f"is already written by instances.{taken[instance.trace_path]}"
        taken.setdefault(instance.trace_path, name)


def _flags(parts: Parts) -> Iterator[Problem]:
    items: list[tuple[str, str, ModelConfig | InstanceConfig]] = [
        *(("models", name, model) for name, model in parts.models.items()),
        *(("instances", name, instance) for name, instance in parts.instances.items()),
    ]
    for section, name, item in items:
        for flag, value in item.engine_args.items():
            text = flag_problem(flag, value) or feature_problem(flag, value)
            if text is not None:
                yield (section, name, "engine_args", flag), text
        for variable in item.env.keys() & OWNED_VARIABLES.keys():
            yield (section, name, "env", variable), owned_text(OWNED_VARIABLES[variable])


def _pairs(parts: Parts) -> Iterator[Problem]:
    sides: dict[str, dict[str, InstanceConfig]] = defaultdict(dict)
    for name, instance in parts.instances.items():
        if instance.role is not Role.COLOCATED and instance.model in parts.models:
            sides[instance.model][name] = instance
    for model, instances in sides.items():
        for flag in PAIRED_FLAGS:
            yield from _differences(flag, parts.models[model], instances)


def _differences(
    flag: str, model: ModelConfig, instances: Mapping[str, InstanceConfig]
) -> Iterator[Problem]:
    default = model.engine_args.get(flag)
    (first, reference), *others = instances.items()
    expected = reference.engine_args.get(flag, default)
    for name, instance in others:
        value = instance.engine_args.get(flag, default)
        if value != expected:
            yield (
                ("instances", name, "engine_args", flag),
                f"must equal that of instances.{first} ({expected!r}), got {value!r}: KV moves "
                "between them",
            )
