"""Whether every instance of a configuration fits its GPUs, and what is left for KV.

Per instance, on one GPU: the share that vLLM may use (`gpu_memory_utilization`) less the weights
and an assumed overhead is the KV pool. What cannot fit is refused with the numbers, as vLLM would
refuse it minutes later; what no file here knows is said and not refused.

Hosts: coordinator.cli (`up`, `config check`), bench.plan."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from configs.load import load_profile
from configs.memory.facts import VALUE_BYTES, FactsUnknown, model_files, served_dtype, shape_of
from configs.memory.sizes import (
    ModelShape,
    group_problem,
    kv_bytes_per_token,
    pool_blocks,
    weight_bytes,
)
from policy.kv_class import cap_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from configs.profile import GpuConfig
    from configs.schema import ClusterConfig, InstanceConfig

GB = 1e9
GIB = 2**30
DEFAULT_UTILIZATION = 0.92
"""vLLM's own (`CacheConfig.gpu_memory_utilization`)."""
_KV_VALUE_BYTES = {**VALUE_BYTES, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceMemory:
    """Bytes and tokens of one GPU of the instance's group; a CPU instance is one."""

    instance: str
    host: str
    gpus: int
    limit_bytes: int | None
    """That vLLM may use of the GPU; None on CPUs, where the pool's size is given."""
    weight_bytes: int
    overhead_bytes: int
    kv_bytes_per_token: int
    pool_bytes: int
    pool_tokens: int
    """What the engine's log will call its KV cache size."""
    shadow_tokens: int
    """What the shadow class may hold at most."""
    host_tier_bytes: int
    host_tier_tokens: int
    model_path: str
    is_local: bool
    """Whether the numbers are those of files on this machine."""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceUnknown:
    instance: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    known: tuple[InstanceMemory, ...]
    unknown: tuple[InstanceUnknown, ...]
    problems: tuple[str, ...]
    """All that speaks against the configuration, each with its YAML path."""

    def host_tier_bytes(self) -> dict[str, int]:
        """Of each host, for all its instances together."""
        totals: dict[str, int] = defaultdict(int)
        for one in self.known:
            totals[one.host] += one.host_tier_bytes * one.gpus
        return dict(totals)


def plan_memory(config: ClusterConfig) -> MemoryPlan:
    gpu = load_profile(config.profile).gpu
    known: list[InstanceMemory] = []
    unknown: list[InstanceUnknown] = []
    problems = [] if gpu is None else [*_device_problems(config, gpu)]
    for name in config.instances:
        try:
            known.append(_planned(config, name, gpu))
        except FactsUnknown as error:
            unknown.append(InstanceUnknown(instance=name, why=str(error)))
    for one in known:
        problems += [f"instances.{one.instance}: {text}" for text in one.problems]
    return MemoryPlan(known=tuple(known), unknown=tuple(unknown), problems=tuple(problems))


def group_size(config: ClusterConfig, name: str) -> int:
    """GPUs (ranks) of the instance's tensor-parallel group."""
    return int(_flag(config, name, "tensor_parallel_size", 1))


def _planned(config: ClusterConfig, name: str, gpu: GpuConfig | None) -> InstanceMemory:
    """Raises FactsUnknown."""
    instance = config.instances[name]
    model = config.models[instance.model]
    gpus = group_size(config, name)
    files = model_files(model.path)
    quantization = _flag(config, name, "quantization", None)
    shape = shape_of(files, model.dtype, quantization)
    problem = group_problem(shape, gpus)
    per_token = kv_bytes_per_token(shape, gpus, _kv_value_bytes(config, name, files.config))
    weights = weight_bytes(shape, gpus)
    limit, overhead, pool = _pool(config, name, gpu, weights)
    pool_tokens = pool_blocks(pool, per_token * model.block_size) * model.block_size
    shadow_blocks = cap_blocks(pool_tokens // model.block_size, config.shadow.kv_cap_share)
    tier_bytes = int(config.host_tier.size_gb * GB) if config.host_tier is not None else 0
    found = InstanceMemory(
        instance=name,
        host=instance.host,
        gpus=gpus,
        limit_bytes=limit,
        weight_bytes=weights,
        overhead_bytes=overhead,
        kv_bytes_per_token=per_token,
        pool_bytes=pool,
        pool_tokens=pool_tokens,
        shadow_tokens=shadow_blocks * model.block_size,
        host_tier_bytes=tier_bytes,
        host_tier_tokens=tier_bytes // per_token,
        model_path=model.path,
        is_local=files.is_local,
    )
    told = [f"tensor_parallel_size {problem}"] if problem else [*_misfit(found, config, shape)]
    return replace(found, problems=tuple(told))


def _misfit(found: InstanceMemory, config: ClusterConfig, shape: ModelShape) -> Iterator[str]:
    model = config.models[config.instances[found.instance].model]
    needed = -(-model.max_model_len // model.block_size) * model.block_size
    if found.limit_bytes is not None and found.pool_bytes <= 0:
        yield (
            f"{found.weight_bytes / GB:.1f} GB of weights ({shape.weight_bytes / GB:.1f} GB over "
            f"{found.gpus} GPU) and {found.overhead_bytes / GB:.1f} GB of overhead do not leave "
            f"room for KV in the {found.limit_bytes / GB:.1f} GB that vLLM may use of a GPU; "
            "raise tensor_parallel_size"
        )
    elif found.pool_tokens - model.block_size < needed:
        yield (
            f"models.{config.instances[found.instance].model}.max_model_len {model.max_model_len} "
            f"needs a KV pool of {needed + model.block_size} tokens "
            f"({(needed + model.block_size) * found.kv_bytes_per_token / GB:.1f} GB), "
            f"got {found.pool_tokens} ({max(0, found.pool_bytes) / GB:.1f} GB beside "
            f"{found.weight_bytes / GB:.1f} GB of weights); vLLM would not start"
        )


def _pool(
    config: ClusterConfig, name: str, gpu: GpuConfig | None, weights: int
) -> tuple[int | None, int, int]:
    """Limit, overhead and the KV pool; the pool is below 0 where the weights alone are too much."""
    given = _flag(config, name, "kv_cache_memory_bytes", None)
    if gpu is None:
        return None, 0, _cpu_pool(config, name) if given is None else int(given)
    limit = int(gpu.memory_gb * GB * _utilization(config, name))
    overhead = int(gpu.overhead_gb * GB)
    rest = limit - weights - overhead
    return limit, overhead, rest if given is None else min(int(given), rest)


def _cpu_pool(config: ClusterConfig, name: str) -> int:
    instance = config.instances[name]
    env = {**config.models[instance.model].env, **instance.env}
    space = env.get("VLLM_CPU_KVCACHE_SPACE", "0")
    if not space.isdigit() or int(space) == 0:
        raise FactsUnknown("env.VLLM_CPU_KVCACHE_SPACE does not say how large the pool is")
    return int(space) * GIB


def _kv_value_bytes(config: ClusterConfig, name: str, files_config: Mapping[str, Any]) -> int:
    """Raises FactsUnknown."""
    kind = str(_flag(config, name, "kv_cache_dtype", "auto"))
    if kind == "auto":
        model = config.models[config.instances[name].model]
        kind = served_dtype(files_config, model.dtype)
    if kind not in _KV_VALUE_BYTES:
        raise FactsUnknown(f"bytes of kv_cache_dtype {kind} are not known here")
    return _KV_VALUE_BYTES[kind]


def _device_problems(config: ClusterConfig, gpu: GpuConfig) -> Iterator[str]:
    """Groups that leave their node, and GPUs that are given away twice."""
    shares: dict[tuple[str, int], float] = defaultdict(float)
    for name, instance in config.instances.items():
        size = group_size(config, name)
        where = f"instances.{name}"
        if size > gpu.per_node:
            yield (
                f"{where}: tensor_parallel_size must be at most {gpu.per_node}, got {size}: a "
                f"group stays inside a node, and a node of profile {config.profile} has "
                f"{gpu.per_node} GPUs"
            )
        if instance.devices is None:
            continue
        yield from _own_devices(where, instance, size, gpu)
        for device in instance.devices[:size]:
            place = (instance.host, device)
            shares[place] += _utilization(config, name)
            if shares[place] > 1:
                yield (
                    f"{where}.devices: GPU {device} of {instance.host} would be used to "
                    f"{shares[place]:.2f} by this and earlier instances; gpu_memory_utilization "
                    "of all must add up to at most 1"
                )


def _own_devices(where: str, instance: InstanceConfig, size: int, gpu: GpuConfig) -> Iterator[str]:
    devices = instance.devices or []
    if len(devices) != size or len(set(devices)) != size:
        yield (
            f"{where}.devices: must be {size} different GPUs (tensor_parallel_size), got {devices}"
        )
    beyond = [device for device in devices if device >= gpu.per_node]
    if beyond:
        yield f"{where}.devices: a node has GPUs 0 to {gpu.per_node - 1}, got {beyond}"


def _utilization(config: ClusterConfig, name: str) -> float:
    return float(_flag(config, name, "gpu_memory_utilization", DEFAULT_UTILIZATION))


def _flag(config: ClusterConfig, name: str, flag: str, default: Any) -> Any:
    instance = config.instances[name]
    given = {**config.models[instance.model].engine_args, **instance.engine_args}
    return {key.replace("-", "_"): value for key, value in given.items()}.get(flag, default)
