"""Role and configuration to the argv and environment of one vLLM server.

Imports neither vLLM nor torch: the coordinator's command line prints what the node processes
execute. Hosts: prefill_node, decode_node and colocated (`run_node`), coordinator.cli
(`engine-args`)."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import sysconfig
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from configs.load import ConfigError, load_config, load_profile
from engine import kv_connectors
from engine.compat import UnsupportedVllm, check_vllm_version
from engine.cores import CoresInvalid, bind_thread, bound_cpus
from engine.params import ADDITIONAL_CONFIG_KEY, SECRET_VARIABLE, EngineParams
from policy.vocabulary import Role

if TYPE_CHECKING:
    from configs.schema import ClusterConfig, CoordinatorConfig, InstanceConfig, ModelConfig

NODE_MODULES = {
    Role.PREFILL: "prefill_node",
    Role.DECODE: "decode_node",
    Role.COLOCATED: "colocated",
}
SCHEDULERS = {
    Role.PREFILL: "prefill_node.scheduler.PrefillScheduler",
    Role.DECODE: "decode_node.scheduler.DecodeScheduler",
    Role.COLOCATED: "colocated.scheduler.ColocatedScheduler",
}
HASH_SEED = "0"
"""Block hashes must compare across processes."""


class LaunchError(ValueError):
    """This instance cannot be started as it is configured: change the configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCommand:
    """One vLLM server: what to execute, what to add to the environment, and on which cores."""

    argv: list[str]
    env: dict[str, str]
    cpus: str | None = None
    """All of its threads stay there, not only those that compute: what a model's server does for
    its own calls takes nothing from another model."""

    def shell_text(self) -> str:
        """The same, ready to paste into a shell that has the secret (if there is one)."""
        variables = [_assignment(name, value) for name, value in sorted(self.env.items())]
        bound = [] if self.cpus is None else ["taskset", "--cpu-list", self.cpus]
        server = shlex.join([*bound, *self.argv[:3]])
        return " \\\n  ".join([*variables, server, *_flag_lines(self.argv[3:])])

    def execute(self) -> NoReturn:
        """This process becomes the server; raises LaunchError."""
        if self.cpus is not None:
            try:
                bind_thread(self.cpus)
            except CoresInvalid as error:
                raise LaunchError(str(error)) from None
        os.execve(self.argv[0], self.argv, {**os.environ, **self.env})


def engine_command(config: ClusterConfig, instance_name: str) -> EngineCommand:
    """Raises LaunchError."""
    instance = config.instances.get(instance_name)
    if instance is None:
        raise LaunchError(
            f"no instance {instance_name!r}; instances are {sorted(config.instances)}"
        )
    model = config.models[instance.model]
    # `load_config` put the profile's flags below the model's, and refuses those that are ours.
    free = {**model.engine_args, **instance.engine_args}
    owned = _owned_flags(config, instance_name)
    assert not owned.keys() & free.keys(), (instance_name, free)
    argv = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    for name, value in {**owned, **free}.items():
        argv += _flag(name, value)
    return EngineCommand(
        argv=argv,
        env=_environment(instance, model) | _secret(config.coordinator),
        cpus=bound_cpus(instance.cpus),
    )


def import_environment() -> dict[str, str]:
    """What another interpreter (EngineCore, a node, the warden) needs to import this very code."""
    root = Path(__file__).resolve().parent.parent
    if root == Path(sysconfig.get_path("purelib")).resolve() or _is_editable(root):
        return {}
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {"PYTHONPATH": os.pathsep.join(dict.fromkeys([str(root), *others]))}


def run_node(role: Role, arguments: list[str]) -> NoReturn:
    """`python -m <node> --config F --instance NAME`: becomes the vLLM server."""
    module = NODE_MODULES[role]
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=f"One {role} instance: a vLLM server with our scheduler.",
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE")
    parser.add_argument("--instance", required=True, metavar="NAME")
    options = parser.parse_args(arguments)
    try:
        config = load_config(options.config)
        command = engine_command(config, options.instance)
        _check_role(role, options.instance, config.instances[options.instance])
        check_vllm_version()
        command.execute()
    except (ConfigError, LaunchError, UnsupportedVllm) as error:
        parser.exit(2, f"{module}: error: {error}\n")


def _check_role(role: Role, name: str, instance: InstanceConfig) -> None:
    if instance.role is not role:
        raise LaunchError(
            f"instances.{name}.role is {instance.role.value}: start it with "
            f"`python -m {NODE_MODULES[instance.role]}`"
        )
    if instance.attach_url is not None:
        raise LaunchError(
            f"instances.{name}.attach_url is set: that engine is started by hand "
            f"(`shadowprefill engine-args` prints its command line)"
        )


def _owned_flags(config: ClusterConfig, name: str) -> dict[str, Any]:
    """Those of `configs.owned.OWNED_FLAGS`."""
    instance = config.instances[name]
    model = config.models[instance.model]
    profile = load_profile(config.profile)
    params = EngineParams.from_cluster(config, name, profile.step_time_of(model.dtype))
    flags: dict[str, Any] = {
        "model": model.path,
        "served_model_name": instance.model,
        "host": instance.host,
        "port": instance.port,
        "dtype": model.dtype,
        "max_model_len": model.max_model_len,
        "block_size": model.block_size,
        "enable_prefix_caching": True,
        "prefix_caching_hash_algo": "sha256_cbor",
        "enable_prompt_tokens_details": True,
        "enable_scale_out": True,
        "scheduler_cls": SCHEDULERS[instance.role],
        "additional_config": {ADDITIONAL_CONFIG_KEY: json.loads(params.to_json())},
    }
    if config.coordinator.otlp_endpoint is not None:
        flags["otlp_traces_endpoint"] = config.coordinator.otlp_endpoint
    kv_transfer = kv_connectors.kv_transfer(config, name, profile.kv_buffer_device)
    if kv_transfer is not None:
        flags["kv_transfer_config"] = kv_transfer
    return flags


def _environment(instance: InstanceConfig, model: ModelConfig) -> dict[str, str]:
    variables = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", **model.env, **instance.env}
    variables["PYTHONHASHSEED"] = HASH_SEED
    if instance.cpus is not None:
        variables["VLLM_CPU_OMP_THREADS_BIND"] = instance.cpus
    if instance.devices is not None:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(str(device) for device in instance.devices)
    if instance.role is not Role.COLOCATED:
        variables["VLLM_NIXL_SIDE_CHANNEL_HOST"] = instance.kv_host
        variables["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(instance.kv_port)
    return variables | import_environment()


def _secret(coordinator: CoordinatorConfig) -> dict[str, str]:
    return {SECRET_VARIABLE: coordinator.engine_secret} if coordinator.engine_secret else {}


def _assignment(name: str, value: str) -> str:
    """The secret is not shown: what is printed ends in histories and scripts."""
    if name == SECRET_VARIABLE:
        return f'{name}="${{{name}:?must be coordinator.engine_secret}}"'
    return f"{name}={shlex.quote(value)}"


def _flag(key: str, value: object) -> list[str]:
    name = key.replace("_", "-") if "." not in key else key
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, list):
        return [f"--{name}", *(_text(item) for item in value)]
    text = _text(value)
    return [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":")) if isinstance(value, dict) else str(value)


def _flag_lines(arguments: list[str]) -> list[str]:
    lines: list[str] = []
    for argument in arguments:
        if argument.startswith("--"):
            lines.append(shlex.quote(argument))
        else:
            lines[-1] += f" {shlex.quote(argument)}"
    return lines


def _is_editable(root: Path) -> bool:
    """Whether `pip install -e` of this checkout makes it importable everywhere."""
    try:
        source = distribution("shadowprefill").read_text("direct_url.json")
    except PackageNotFoundError:
        return False
    return source is not None and json.loads(source)["url"] == root.as_uri()
