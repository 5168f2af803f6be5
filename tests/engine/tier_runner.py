"""A played model runner whose KV slots are copied to a host tier and back, by the worker half of
vLLM's offloading connector and by ours; only the copies are played.

A copy happens at a moment of chance between its submission and its report, as on a stream of a GPU,
and what a copy out of the tier is still to fill holds rubbish until then. So a block that was given
to somebody else before its copy was made, or is read before its copy has come, ends in the wrong
digest, and the runner's own checks find that."""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.outputs import KVConnectorOutput

from engine.host_copies import IdleLinkWorker
from engine.host_tier import HostTierSpec
from tests.engine.kv_runner import KvRunner

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import ModelRunnerOutput

RUBBISH = -1


class Copy(NamedTuple):
    job_id: int
    into_the_tier: bool
    sources: list[int]
    targets: list[int]


class PlayedCopies(OffloadingWorker):
    """`late`: how likely it is that the oldest copy is not done when somebody asks."""

    def __init__(self, pool: list[int], block_size: int, seed: int, late: float = 0.5) -> None:
        self.tier: dict[int, list[int]] = {}
        self.waits = 0
        self._pool = pool
        self._block_size = block_size
        self._late = late
        self._chance = random.Random(seed)
        self._pending: deque[Copy] = deque()
        self._done: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        sources, targets = src_spec.block_ids.tolist(), dst_spec.block_ids.tolist()
        self._pending.append(Copy(job_id, True, sources, targets))
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        sources, targets = src_spec.block_ids.tolist(), dst_spec.block_ids.tolist()
        assert len(sources) == len(targets), (sources, targets)
        for block_id in targets:
            self._write(block_id, [RUBBISH] * self._block_size)
        self._pending.append(Copy(job_id, False, sources, targets))
        return True

    def get_finished(self) -> list[TransferResult]:
        while self._pending and self._chance.random() > self._late:
            self._do(self._pending.popleft())
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        self.waits += 1
        while job_ids & {copy.job_id for copy in self._pending}:
            self._do(self._pending.popleft())

    def _do(self, copy: Copy) -> None:
        for source, target in zip(copy.sources, copy.targets, strict=True):
            if copy.into_the_tier:
                at = source * self._block_size
                self.tier[target] = self._pool[at : at + self._block_size]
            else:
                self._write(target, self.tier[source])
        self._done.append(TransferResult(copy.job_id, True, len(copy.sources), 0.001))

    def _write(self, block_id: int, digests: list[int]) -> None:
        at = block_id * self._block_size
        self._pool[at : at + self._block_size] = digests


class TierRunner(KvRunner):
    """Beside a scheduler with a host tier."""

    def __init__(
        self, scheduler: Any, blocks: int, block_size: int, *, asynchronous: bool, seed: int
    ) -> None:
        super().__init__(blocks, block_size, asynchronous=asynchronous)
        config, kv_cache = scheduler.vllm_config, scheduler.kv_cache_config
        spec = HostTierSpec(build_offloading_config(config, kv_cache))
        self.copies = PlayedCopies(self._slots, block_size, seed)
        self._worker = OffloadingConnectorWorker(spec, config, kv_cache)
        self._worker.worker = IdleLinkWorker(self.copies, slice_blocks=3)

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        metadata = output.kv_connector_metadata
        self._worker.handle_preemptions(metadata)
        result = super().execute(output)
        self._worker.start_kv_transfers(metadata)
        self._worker.prepare_store_kv(metadata)
        _, received = self._worker.get_finished(output.finished_req_ids)
        result.kv_connector_output = KVConnectorOutput(
            finished_recving=received,
            kv_connector_worker_meta=self._worker.build_connector_worker_meta(),
        )
        return result
