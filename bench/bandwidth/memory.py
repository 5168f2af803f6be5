"""Memory to move: DRAM here, VRAM where there is a GPU."""

from __future__ import annotations

import ctypes
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from kv_transport.nixl_link import Memory

if TYPE_CHECKING:
    from bench.bandwidth.shapes import Shape

SegmentType = Literal["DRAM", "VRAM"]
_GPUS = Path("/proc/driver/nvidia/gpus")


class Buffer(Protocol):
    @property
    def memory(self) -> Memory: ...

    def fill(self, seed: int) -> None:
        """Every page is touched: a first write is no part of a transfer."""

    def digest(self) -> int:
        """Of all bytes, in their order."""

    def copy_from(self, other: Any, shape: Shape) -> None:
        """The yardstick: block by block, inside one process, done on return."""


def segment_type() -> SegmentType:
    """VRAM if this machine has a GPU."""
    return "VRAM" if _GPUS.is_dir() and any(_GPUS.iterdir()) else "DRAM"


def allocate(kind: SegmentType, size_bytes: int, device: int = 0) -> Buffer:
    return Dram(size_bytes) if kind == "DRAM" else Vram(size_bytes, device)


class Dram:
    def __init__(self, size_bytes: int) -> None:
        self._bytes = np.empty(size_bytes, np.uint8)
        self._address = self._bytes.ctypes.data

    @property
    def memory(self) -> Memory:
        return Memory(kind="DRAM", address=self._address, size_bytes=len(self._bytes))

    @property
    def array(self) -> np.ndarray:
        return self._bytes

    def fill(self, seed: int) -> None:
        self._bytes[:] = np.frombuffer(
            np.random.default_rng(seed).bytes(len(self._bytes)), np.uint8
        )

    def digest(self) -> int:
        return zlib.crc32(self._bytes.data)

    def copy_from(self, other: Dram, shape: Shape) -> None:
        for block in shape.order():
            at = block * shape.block_size
            ctypes.memmove(self._address + at, other._address + at, shape.block_size)


class Vram:
    """Not run anywhere yet: no machine of this project has a GPU."""

    def __init__(self, size_bytes: int, device: int) -> None:
        import torch

        self._torch = torch
        self._device = device
        self._bytes = torch.empty(size_bytes, dtype=torch.uint8, device=f"cuda:{device}")

    @property
    def memory(self) -> Memory:
        return Memory(
            kind="VRAM",
            address=self._bytes.data_ptr(),
            size_bytes=self._bytes.numel(),
            device=self._device,
        )

    def fill(self, seed: int) -> None:
        drawn = np.random.default_rng(seed).bytes(self._bytes.numel())
        self._bytes.copy_(self._torch.frombuffer(bytearray(drawn), dtype=self._torch.uint8))

    def digest(self) -> int:
        return zlib.crc32(self._bytes.cpu().numpy())

    def copy_from(self, other: Vram, shape: Shape) -> None:
        for block in shape.order():
            part = slice(block * shape.block_size, (block + 1) * shape.block_size)
            self._bytes[part].copy_(other._bytes[part])
        self._torch.cuda.synchronize(self._device)
