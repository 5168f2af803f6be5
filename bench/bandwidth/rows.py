"""What was timed, as rows with nixlbench's columns, and the ratios between them.

As in nixlbench: GB is 1e9 bytes, the latency is per block, Tx begins where Post ends, and Prep is
outside both. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.bandwidth.shapes import Shape

MEMCPY, UCX, NIXL_READ, NIXL_WRITE, ENGINE_PULL = (
    "memcpy", "ucx", "nixl_read", "nixl_write", "engine_pull",
)  # fmt: skip
RATIOS = (
    ("engine_pull_to_nixl_read", ENGINE_PULL, NIXL_READ),
    ("nixl_read_to_memcpy", NIXL_READ, MEMCPY),
    ("nixl_write_to_memcpy", NIXL_WRITE, MEMCPY),
)
AIMS = {"engine_pull_to_nixl_read": 0.9, "nixl_read_to_memcpy": 0.8, "nixl_write_to_memcpy": 0.8}
SLOW_READ_BYTES = 16 << 20
"""Of smaller transfers, one pause of the machine hides how fast any of them was."""
SLOW_READ_SHARE = 0.5
"""Of the fastest transfers of both: a READ that UCX emulates never has a fast one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One transfer. `prep_s` and `post_s` are None where there is no such step."""

    tx_s: float
    post_s: float | None = None
    prep_s: float | None = None

    @property
    def post_to_done_s(self) -> float:
        return (self.post_s or 0.0) + self.tx_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """All transfers of one kind and shape, or why there are none."""

    name: str
    shape: Shape
    descriptors: int | None = None
    """Per transfer, as NIXL counts them after merging; None where nobody counts."""
    timings: tuple[Timing, ...] = ()
    skipped: str = ""

    @property
    def median_gb_per_s(self) -> float | None:
        """What the ratios are made of: one pause of the machine is no figure of a link."""
        if not self.timings:
            return None
        seconds = statistics.median(timing.post_to_done_s for timing in self.timings)
        return self.shape.total_bytes / 1e9 / seconds

    @property
    def best_gb_per_s(self) -> float:
        if not self.timings:
            return 0.0
        seconds = min(timing.post_to_done_s for timing in self.timings)
        return self.shape.total_bytes / 1e9 / seconds

    def to_json(self) -> dict[str, Any]:
        row: dict[str, Any] = {
            "name": self.name,
            "Block Size (B)": self.shape.block_size,
            "Batch Size": self.shape.batch_size,
        }
        if not self.timings:
            return row | {"skipped": self.skipped}
        total_s = sum(timing.post_to_done_s for timing in self.timings)
        transfers = len(self.timings)
        return row | {
            "B/W (GB/Sec)": _short(self.shape.total_bytes * transfers / 1e9 / total_s),
            "Avg Lat. (us)": _short(1e6 * total_s / (transfers * self.shape.batch_size)),
            **_average_and_p99("Prep", [timing.prep_s for timing in self.timings]),
            **_average_and_p99("Post", [timing.post_s for timing in self.timings]),
            **_average_and_p99("Tx", [timing.tx_s for timing in self.timings]),
            "median_gb_per_s": _short(self.median_gb_per_s),
            "descriptors": self.descriptors,
            "transfers": transfers,
        }


def ratios(measured: Sequence[Measured], shape: Shape) -> dict[str, float | None]:
    """At one shape, by median; None where one side was not measured."""
    found = {one.name: one.median_gb_per_s for one in measured if one.shape == shape}
    return {name: _share(found.get(over), found.get(under)) for name, over, under in RATIOS}


def slow_reads(measured: Sequence[Measured]) -> list[str]:
    """Shapes whose READ is far slower than the WRITE: UCX has no transport that can read."""
    writes = {one.shape: one.best_gb_per_s for one in measured if one.name == NIXL_WRITE}
    reads = {one.shape: one.best_gb_per_s for one in measured if one.name == NIXL_READ}
    return [
        f"READ << WRITE at {shape.batch_size} x {shape.block_size} B: {read:.2f} against "
        f"{writes[shape]:.2f} GB/s at best. A pull is a READ: UCX_TLS of the profile has to name a "
        "transport that can read (README: UCX settings)"
        for shape, read in reads.items()
        if shape in writes
        and shape.total_bytes >= SLOW_READ_BYTES
        and read < SLOW_READ_SHARE * writes[shape]
    ]


def _average_and_p99(step: str, seconds: Sequence[float | None]) -> dict[str, float | None]:
    known = [1e6 * value for value in seconds if value is not None]
    if not known:
        return {f"Avg {step} (us)": None, f"P99 {step} (us)": None}
    return {
        f"Avg {step} (us)": _short(statistics.fmean(known)),
        f"P99 {step} (us)": _short(float(np.quantile(known, 0.99))),
    }


def _share(over: float | None, under: float | None) -> float | None:
    return None if over is None or not under else _short(over / under)


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
