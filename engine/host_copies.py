"""Copies between an instance's KV pool and the host tier, in the process that owns the pool.

What a call waits for, a copy out of the tier, starts at once. Copies into it are written through in
slices, one while nothing is read, so that a block has been copied long before it is evicted.
Where that was too early, whoever takes the block waits for its copy (vLLM asks for that by `wait`).

Host: engine.host_tier."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

if TYPE_CHECKING:
    from torch import Tensor
    from vllm.v1.kv_offload.base import CanonicalKVCaches


class CpuCopies(OffloadingWorker):
    """Where the pool is memory of the same machine: a copy is done when it is asked for."""

    def __init__(self, kv_caches: CanonicalKVCaches, slots: int) -> None:
        self._pool = [cache.tensor for cache in kv_caches.tensors]
        # Not zeroed: a page of the tier takes memory from its first use on.
        self._tier = [
            torch.empty((slots, cache.page_size_bytes), dtype=torch.int8)
            for cache in kv_caches.tensors
        ]
        self._done: list[TransferResult] = []

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        return self._copy(job_id, self._pool, src_spec, self._tier, dst_spec)

    def submit_load(
        self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec, **_more: Any
    ) -> bool:
        return self._copy(job_id, self._tier, src_spec, self._pool, dst_spec)

    def get_finished(self) -> list[TransferResult]:
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Nothing is ever under way."""

    def _copy(
        self,
        job_id: int,
        sources: list[Tensor],
        source: LoadStoreSpec,
        targets: list[Tensor],
        target: LoadStoreSpec,
    ) -> bool:
        assert isinstance(source, BlockIDsLoadStoreSpec)
        assert isinstance(target, BlockIDsLoadStoreSpec)
        assert len(source.block_ids) == len(target.block_ids), (source, target)
        start_s, copied_bytes = time.perf_counter(), 0
        rows, places = (torch.as_tensor(s.block_ids, dtype=torch.long) for s in (source, target))
        for from_tensor, to_tensor in zip(sources, targets, strict=True):
            copied_bytes += _copy_rows(from_tensor, rows, to_tensor, places)
        spent_s = time.perf_counter() - start_s
        self._done.append(TransferResult(job_id, True, copied_bytes, spent_s))
        return True


def _copy_rows(source: Tensor, rows: Tensor, target: Tensor, places: Tensor) -> int:
    """How many bytes that were."""
    copied: Tensor = source.index_select(0, rows)
    target.index_copy_(0, places, copied)
    return copied.numel()


@dataclass(slots=True, eq=False)
class _Store:
    """A job of vLLM's, and how far it is."""

    job_id: int
    source: GPULoadStoreSpec
    target: CPULoadStoreSpec
    started_blocks: int = 0
    slices_under_way: int = 0
    copied_bytes: int = 0
    spent_s: float = 0.0

    @property
    def missing_blocks(self) -> int:
        return len(self.source.block_ids) - self.started_blocks

    def next_slice(self, at_most: int) -> tuple[GPULoadStoreSpec, CPULoadStoreSpec]:
        start = self.started_blocks
        self.started_blocks = end = start + min(self.missing_blocks, at_most)
        (first_block,) = self.source.block_indices  # one KV group: engine.features
        source = GPULoadStoreSpec(
            list(map(int, self.source.block_ids[start:end])),
            group_sizes=[end - start],
            block_indices=[first_block + start],
        )
        return source, CPULoadStoreSpec(list(map(int, self.target.block_ids[start:end])))


class IdleLinkWorker(OffloadingWorker):
    """Passes copies on to another worker, those into the tier while none comes out of it."""

    def __init__(self, copies: OffloadingWorker, slice_blocks: int) -> None:
        assert slice_blocks > 0, slice_blocks
        self._copies = copies
        self._slice_blocks = slice_blocks
        self._loads: set[int] = set()
        self._queue: deque[_Store] = deque()
        """Stores that have not started as a whole."""
        self._slices: dict[int, _Store] = {}
        # Jobs of vLLM's count up from 0.
        self._slice_ids = count(-1, -1)

    def submit_load(
        self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec, **more: Any
    ) -> bool:
        # vLLM 0.33 says of a load whether it is urgent.
        self._loads.add(job_id)
        return self._copies.submit_load(job_id, src_spec, dst_spec, **more)

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        assert isinstance(dst_spec, CPULoadStoreSpec)
        self._queue.append(_Store(job_id, src_spec, dst_spec))
        return True

    def get_finished(self) -> list[TransferResult]:
        """Once per iteration."""
        finished: list[TransferResult] = []
        for result in self._copies.get_finished():
            if result.job_id in self._loads:
                self._loads.remove(result.job_id)
                finished.append(result)
            else:
                finished += self._slice_done(result)
        if not self._loads and not self._slices:
            self._start_slice()
        return finished

    def wait(self, job_ids: set[int]) -> None:
        for store in [store for store in self._queue if store.job_id in job_ids]:
            self._queue.remove(store)
            self._start(store, store.missing_blocks)
        slices = {slice_id for slice_id, store in self._slices.items() if store.job_id in job_ids}
        self._copies.wait(slices | (job_ids & self._loads))

    def shutdown(self) -> None:
        self._queue.clear()
        self._copies.shutdown()

    def _start_slice(self) -> None:
        blocks = self._slice_blocks
        while self._queue and blocks > 0:
            store = self._queue[0]
            blocks -= self._start(store, blocks)
            if not store.missing_blocks:
                self._queue.popleft()

    def _start(self, store: _Store, at_most: int) -> int:
        source, target = store.next_slice(at_most)
        slice_id = next(self._slice_ids)
        self._slices[slice_id] = store
        store.slices_under_way += 1
        started = self._copies.submit_store(slice_id, source, target)
        assert started, store
        return len(source.block_ids)

    def _slice_done(self, result: TransferResult) -> list[TransferResult]:
        store = self._slices.pop(result.job_id)
        store.slices_under_way -= 1
        store.copied_bytes += result.transfer_size or 0
        store.spent_s += result.transfer_time or 0.0
        if store.missing_blocks or store.slices_under_way:
            return []
        return [TransferResult(store.job_id, True, store.copied_bytes, store.spent_s)]
