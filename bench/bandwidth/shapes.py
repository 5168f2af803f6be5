"""Which transfers are measured: block size and blocks per transfer, as nixlbench names them.

Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

BLOCK_STEP = 8
BATCH_STEP = 16
"""nixlbench doubles both; these steps tell as much in a tenth of the time."""


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class Shape:
    block_size: int
    """Bytes."""
    batch_size: int
    """Blocks, and so descriptors, of one transfer."""

    @property
    def total_bytes(self) -> int:
        return self.block_size * self.batch_size

    def order(self) -> list[int]:
        """All blocks, no two neighbours after each other: NIXL merges those into one descriptor."""
        blocks = self.batch_size
        step = max(2, round(blocks * 0.618))
        while math.gcd(step, blocks) != 1 and step < blocks:
            step += 1
        if blocks <= 3 or step >= blocks - 1:
            return list(range(blocks))[::-1]
        return [number * step % blocks for number in range(blocks)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """nixlbench's options of the same names."""

    total_buffer_size: int
    start_block_size: int
    max_block_size: int
    start_batch_size: int
    max_batch_size: int
    num_iter: int
    warmup_iter: int

    def __post_init__(self) -> None:
        for name in self.__slots__:
            least, value = int(name != "warmup_iter"), getattr(self, name)
            if value < least:
                raise ValueError(f"--{name.replace('_', '-')} must be >= {least}, got {value}")
        for what in ("block", "batch"):
            start, most = getattr(self, f"start_{what}_size"), getattr(self, f"max_{what}_size")
            if start > most:
                raise ValueError(
                    f"--start-{what}-size must be <= --max-{what}-size ({most}), got {start}"
                )
        if self.start_block_size * self.start_batch_size > self.total_buffer_size:
            raise ValueError(
                "--total-buffer-size must hold the smallest transfer "
                f"({self.start_block_size * self.start_batch_size} bytes), got "
                f"{self.total_buffer_size}"
            )

    def shapes(self) -> list[Shape]:
        """Every block size with every batch size that fits the buffer, and the whole buffer."""
        found = {
            Shape(block_size=block_size, batch_size=batch_size)
            for block_size in _steps(self.start_block_size, self.max_block_size, BLOCK_STEP)
            for batch_size in (
                *_steps(self.start_batch_size, self.max_batch_size, BATCH_STEP),
                min(self.max_batch_size, self.total_buffer_size // block_size),
            )
            if batch_size and block_size * batch_size <= self.total_buffer_size
        }
        return sorted(found)


def _steps(first: int, last: int, factor: int) -> list[int]:
    found = [first]
    while found[-1] * factor <= last:
        found.append(found[-1] * factor)
    return found
