"""The bandwidth benchmark from top to bottom: READ THIS FIRST.

Engine pulls first, because their descriptors are what raw NIXL is then measured with; the engines
are gone before that, since they poll. At every shape memcpy, UCX, READ and WRITE take turns, so
that a change of the machine's mood hits all of them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.bandwidth.engine_pull import Pair, Pull, end_to_end_json, measured
from bench.bandwidth.memory import allocate
from bench.bandwidth.nixl_pair import nixl_pair, transfer
from bench.bandwidth.rows import (
    ENGINE_PULL,
    MEMCPY,
    NIXL_READ,
    NIXL_WRITE,
    UCX,
    Measured,
    Timing,
    ratios,
    slow_reads,
)
from bench.bandwidth.ucx_pair import missing_ucxx, ucx_pair
from bench.demo.place import CPUINFO, processor
from coordinator.local_cluster import LocalCluster
from kv_transport.nixl_link import ENGINE_THREADS, Operation
from policy.vocabulary import Role

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from bench.bandwidth.memory import Buffer, SegmentType
    from bench.bandwidth.shapes import Grid, Shape
    from bench.bandwidth.ucx_pair import UcxPair
    from configs.schema import ClusterConfig
    from kv_transport.nixl_link import NixlRoute

Way = Callable[[], tuple[Timing, "int | None"]]
MEASURED = (
    "B/W: bytes over post plus Tx, GB = 1e9 bytes; latency per block; Prep: making the request, in "
    "no other column. Blocks are taken in an order without neighbours, so that NIXL merges none: "
    "descriptors is what it counted. memcpy: libc's, the same blocks, one process. engine_pull: "
    "NIXL's telemetry in D, from post to the iteration that found it done. ratios: at ratio_shape, "
    "the engine's own if there was one, by the median transfer."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulls:
    """What the engine pair showed, or why there is none."""

    kept: tuple[Pull, ...] = ()
    first: tuple[Pull, ...] = ()
    """Left out: the handshake, and pulls into memory of D that was never written before."""
    skipped: str = ""


@dataclass(slots=True)
class _Timed:
    timings: list[Timing] = field(default_factory=list)
    descriptors: int | None = None


def engine_pulls(
    config_path: Path, run_dir: Path, *, prompt_tokens: int, first: int, count: int
) -> Pulls:
    """Of the first model's first P and D; raises ClusterStartError, PullMissing."""
    with LocalCluster(config_path, run_dir, coordinator=False) as cluster:
        pair = _pair(cluster.config, prompt_tokens)
        pulls = asyncio.run(pair.pulls(first + count))
    return Pulls(first=tuple(pulls[:first]), kept=tuple(pulls[first:]))


def run_bandwidth(grid: Grid, kind: SegmentType, pulls: Pulls, profile: str) -> dict[str, Any]:
    """Raises PeerFailed, WrongBytes."""
    rows: list[Measured] = []
    shapes = grid.shapes()
    ratio_shape = max(shapes, key=lambda shape: (shape.total_bytes, shape.block_size))
    if pulls.kept:
        rows.append(measured(pulls.kept))
        ratio_shape = rows[0].shape
        shapes = [*shapes, ratio_shape]
    else:
        rows.append(Measured(name=ENGINE_PULL, shape=ratio_shape, skipped=pulls.skipped))
    rows += _raw(shapes, grid, kind)
    return {
        "rows": [row.to_json() for row in rows],
        "ratio_shape": {
            "Block Size (B)": ratio_shape.block_size,
            "Batch Size": ratio_shape.batch_size,
        },
        "ratios": ratios(rows, ratio_shape),
        "warnings": slow_reads(rows),
        "engine_pulls": end_to_end_json(pulls.kept) if pulls.kept else {"skipped": pulls.skipped},
        "first_pulls": end_to_end_json(pulls.first) if pulls.first else None,
        "conditions": _conditions(grid, kind, profile),
        "measured": MEASURED,
    }


def _raw(shapes: Sequence[Shape], grid: Grid, kind: SegmentType) -> list[Measured]:
    size_bytes = max(shape.total_bytes for shape in shapes)
    no_ucx = missing_ucxx(kind)
    rows: list[Measured] = []
    with ExitStack() as stack:
        nixl = stack.enter_context(nixl_pair(kind, size_bytes))
        ucx = None if no_ucx else stack.enter_context(ucx_pair(size_bytes))
        source = allocate(kind, size_bytes)
        source.fill(0)
        nixl.check(max(shapes, key=lambda shape: shape.total_bytes))
        for shape in dict.fromkeys(shapes):
            with closing(nixl.route(shape)) as route:
                ways = _ways(shape, route, nixl.local, source)
                if ucx is not None:
                    ways[UCX] = partial(_received, ucx, shape)
                rows += _in_turns(ways, shape, grid)
    if no_ucx:
        rows.append(Measured(name=UCX, shape=shapes[-1], skipped=no_ucx))
    return rows


def _ways(shape: Shape, route: NixlRoute, local: Buffer, source: Buffer) -> dict[str, Way]:
    return {
        MEMCPY: partial(_copied, local, source, shape),
        NIXL_READ: partial(transfer, route, Operation.READ, shape),
        NIXL_WRITE: partial(transfer, route, Operation.WRITE, shape),
    }


def _in_turns(ways: Mapping[str, Way], shape: Shape, grid: Grid) -> list[Measured]:
    timed = {name: _Timed() for name in ways}
    for number in range(grid.warmup_iter + grid.num_iter):
        for name, way in ways.items():
            timing, descriptors = way()
            if number >= grid.warmup_iter:
                timed[name].timings.append(timing)
                timed[name].descriptors = descriptors
    return [
        Measured(name=name, shape=shape, descriptors=one.descriptors, timings=tuple(one.timings))
        for name, one in timed.items()
    ]


def _copied(target: Buffer, source: Buffer, shape: Shape) -> tuple[Timing, None]:
    began_s = time.perf_counter()
    target.copy_from(source, shape)
    return Timing(tx_s=time.perf_counter() - began_s), None


def _received(ucx: UcxPair, shape: Shape) -> tuple[Timing, None]:
    return ucx.receive(shape), None


def _pair(config: ClusterConfig, prompt_tokens: int) -> Pair:
    model = next(iter(config.models))
    urls = {
        role: next(
            one.url for one in config.instances.values() if one.model == model and one.role is role
        )
        for role in (Role.PREFILL, Role.DECODE)
    }
    return Pair(
        model=model,
        prefill_url=urls[Role.PREFILL],
        decode_url=urls[Role.DECODE],
        prompt_tokens=prompt_tokens,
    )


def _conditions(grid: Grid, kind: SegmentType, profile: str) -> dict[str, Any]:
    return {
        **asdict(grid),
        "initiator_seg_type": kind,
        "target_seg_type": kind,
        "num_threads": ENGINE_THREADS,
        "profile": profile,
        "ucx": {name: value for name, value in sorted(os.environ.items()) if "UCX_" in name},
        "processor": processor(CPUINFO),
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }
