"""What was found on a node; None or empty where there is nothing, or no way to know.

Pure. Hosts: coordinator.doctor.look fills it in, coordinator.doctor.judge reads it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_RANGE = re.compile(r"^(\d+)\.\.(\d+|inf)$|^(\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    index: int
    name: str
    memory_mib: int
    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaPort:
    name: str
    """`mlx5_0:1`, as UCX_NET_DEVICES wants it."""
    active: bool
    link: str
    """InfiniBand or Ethernet (RoCE)."""
    rate: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NixlFound:
    """What a READ between two agents of a child process took."""

    memory: str = ""
    """DRAM or VRAM; empty: it did not come to a read."""
    transports: tuple[str, ...] = ()
    """Of the read of a large block, such as cma/memory or cuda_ipc/cuda."""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """An engine of the configuration that answers."""

    instance: str
    url: str
    version: str
    clock_offset_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    gpus: tuple[Gpu, ...] = ()
    gpu_error: str = ""
    nvlink_pairs: int | None = None
    """Pairs of GPUs that NVLink connects; None: not known."""
    rdma: tuple[RdmaPort, ...] = ()
    gpu_direct: str = ""
    """By what NICs reach GPU memory; empty: nothing was found."""
    nixl: NixlFound = NixlFound()
    shm_bytes: int = 0
    memlock_bytes: int | None = None
    """None: no limit."""
    memory_available_bytes: int = 0
    busy_ports: tuple[str, ...] = ()
    """Addresses of this machine that something else listens on."""
    versions: dict[str, str] = field(default_factory=dict)
    clock_synchronised: bool | None = None
    peers: tuple[Peer, ...] = ()
    silent: tuple[str, ...] = ()
    """Instances of the configuration that do not answer."""


def gpus_in(text: str) -> tuple[Gpu, ...]:
    """`nvidia-smi --query-gpu=index,name,memory.total,driver_version --format=csv,noheader`."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line]
    return tuple(
        Gpu(index=int(index), name=name, memory_mib=int(memory.split()[0]), driver=driver)
        for index, name, memory, driver in rows
    )


def nvlink_pairs_in(text: str) -> int:
    """`nvidia-smi topo -m`: NV18 and the like stand where two GPUs have links."""
    rows = [line.split() for line in text.splitlines() if line.startswith("GPU")]
    rows = [row for row in rows if len(row) > 1 and not row[1].startswith("GPU")]
    size = len(rows)
    cells = (cell for row in rows for cell in row[1 : size + 1])
    return sum(re.fullmatch(r"NV\d+", cell) is not None for cell in cells) // 2


def transports_in(log: str) -> tuple[str, ...]:
    """Of reads of the largest blocks, as UCX_PROTO_INFO=y writes it into a log.

    A table per operation: a line that names it, then rows of `range | description | config`."""
    found: list[str] = []
    is_read = False
    for line in log.splitlines():
        cells = [cell.strip() for cell in line.partition("|")[2].split("|")[:-1]]
        if len(cells) == 1:
            is_read = cells[0].startswith("remote memory read")
        elif is_read and len(cells) == 3 and _is_largest(cells[0]):
            found += re.findall(r"[a-z_0-9]+/[A-Za-z0-9_:.]+", cells[2])
    return tuple(dict.fromkeys(found))


def _is_largest(text: str) -> bool:
    match = _RANGE.match(text)
    return match is not None and match[2] == "inf"
