"""Where things ran and which caps were in force: without it a TTFT says nothing."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.demo.dtype import native_bfloat16

if TYPE_CHECKING:
    from configs.schema import ClusterConfig


CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    profile: str
    caps: dict[str, float | int | str]
    models: dict[str, str]
    """Model key -> dtype and weights."""
    processor: str
    engine_cpus: dict[str, str]
    client_cpus: str
    coordinator_cpus: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        caps = ", ".join(f"{name} {value}" for name, value in self.caps.items())
        engines = ", ".join(f"{name} on {cpus}" for name, cpus in self.engine_cpus.items())
        return [
            *(f"model {name}: {text}" for name, text in self.models.items()),
            f"caps of hardware profile {self.profile}: {caps}",
            f"processor: {self.processor}",
            f"engine compute threads: {engines}",
            f"client on CPUs {self.client_cpus}, coordinator on CPUs {self.coordinator_cpus}: "
            "not pinned by us, they share these CPUs with the engines",
        ]


def conditions(config: ClusterConfig, coordinator_pid: int | None) -> Conditions:
    shadow = config.shadow
    return Conditions(
        profile=config.profile,
        caps={
            "controller": shadow.controller.value,
            "iteration_cap_s": shadow.iteration_cap_s,
            "n_min_tokens": shadow.n_min_tokens,
            "max_chunk_tokens": shadow.max_chunk_tokens,
            "segment_tokens": shadow.segment_tokens,
            "resubmit_tokens": shadow.resubmit_tokens,
            "beta": shadow.beta,
            "delta": shadow.delta,
            "margin": shadow.margin,
            "kv_cap_share": shadow.kv_cap_share,
            "idle_age_s": shadow.idle_age_s,
        },
        models={name: _model_text(config, name) for name in config.models},
        processor=processor(CPUINFO),
        engine_cpus={
            name: f"CPUs {instance.cpus}" if instance.cpus else "CPUs not bound"
            for name, instance in config.instances.items()
        },
        client_cpus=cpus_of(0),
        coordinator_cpus="unknown (attached by URL)"
        if coordinator_pid is None
        else cpus_of(coordinator_pid),
    )


def cpus_of(pid: int) -> str:
    """The CPUs a process may run on; 0 is this process."""
    return ",".join(str(cpu) for cpu in sorted(os.sched_getaffinity(pid)))


def processor(cpuinfo: Path) -> str:
    """Its name, and whether bfloat16 is fast on it: that decides which model is the slow one."""
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    pairs = [line.partition(":") for line in lines]
    facts = {key.strip(): value.strip() for key, _, value in reversed(pairs)}
    flags = facts.get("flags", "").split()
    fast = native_bfloat16(cpuinfo)
    if fast:
        speed = f"bfloat16 by {', '.join(fast)}"
    elif flags:
        speed = "no bfloat16 instructions: bfloat16 is emulated and slower than float32"
    else:
        speed = "bfloat16 instructions unknown"
    return f"{facts.get('model name', 'unknown')}, {len(os.sched_getaffinity(0))} CPUs, {speed}"


def float32_models(config: ClusterConfig) -> frozenset[str]:
    return frozenset(name for name, model in config.models.items() if model.dtype == "float32")


def _model_text(config: ClusterConfig, name: str) -> str:
    model = config.models[name]
    twins = [
        other
        for other, candidate in config.models.items()
        if other != name and candidate.path == model.path
    ]
    text = f"{Path(model.path).name} in {model.dtype}"
    if not twins or model.dtype != "float32":
        return text
    return (
        f"{text}: the same weights as {', '.join(twins)}, served as a second model in float32 "
        "(the package registry has no second instruct model of this size)"
    )
