"""The host tier and NIXL in one connector: each brings its own part of a prefix, on vLLM's real
scheduler and the scheduler halves of both; what their workers do is played."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.v1.kv_offload.base import make_offload_key
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import RequestStatus

from decode_node.scheduler import DecodeScheduler
from engine.kv_connectors import HOST_TIER_CONNECTOR, HOST_TIER_MODULE
from engine.kv_union import MultiConnector, UnionMetadata
from engine.params import StepTimeStart
from policy.vocabulary import KvClass, RequestClass
from tests.engine.scheduler_world import BLOCK, World, normal, params, scheduler_of
from tests.engine.test_scheduler_pulls import NIXL, a_pull, a_shadow_pull

if TYPE_CHECKING:
    from vllm.v1.request import Request

pytestmark = [pytest.mark.vllm_cpu, pytest.mark.nixl]

STEP_TIME = StepTimeStart(
    fixed_s=0.001, s_per_request=0.0, s_per_token=0.0001, s_per_token_context=0.0
)
TIER = {
    "kv_connector": HOST_TIER_CONNECTOR,
    "kv_connector_module_path": HOST_TIER_MODULE,
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "spec_name": "HostTierSpec",
        "spec_module_path": HOST_TIER_MODULE,
        "host_tier": {"size_bytes": 128_000, "bandwidth_bytes_per_s": 1e9, "idle_age_s": 0.0},
    },
}


def a_world(blocks: int = 200) -> World:
    nixl = {
        name: getattr(NIXL[DecodeScheduler.role], name)
        for name in ("kv_connector", "kv_connector_module_path", "kv_role", "kv_buffer_device")
    }
    union = KVTransferConfig(
        kv_connector="MultiConnector",
        kv_connector_module_path="engine.kv_union",
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={"connectors": [TIER, nixl]},
    )
    own = params(role=DecodeScheduler.role, step_time=STEP_TIME, kv_cap_share=0.9, idle_age_s=0.0)
    return World(scheduler_of(DecodeScheduler, own, blocks=blocks, kv_transfer_config=union))


def host_of(world: World) -> Any:
    return world.scheduler.connector.host


def put_into_the_tier(world: World, request: Request, tokens: int) -> None:
    keys = [make_offload_key(key, 0) for key in request.block_hashes[: tokens // BLOCK]]
    tier = host_of(world).manager.tier
    tier.arrived(list(tier.store(keys, RequestClass.NORMAL, 0.0, own=set()).slots))


def scheduled(world: World) -> UnionMetadata:
    metadata = world.scheduler.schedule().kv_connector_metadata
    assert isinstance(metadata, UnionMetadata)
    return metadata


def blocks_of(world: World, name: str) -> list[int]:
    blocks: list[int] = world.scheduler.kv_cache_manager.get_block_ids(name)[0]
    return blocks


def loaded(metadata: UnionMetadata) -> list[int]:
    return [
        block_id
        for job in metadata.metadata[0].load_jobs.values()
        for block_id in job.dst_spec.block_ids.tolist()
    ]


def pulled(metadata: UnionMetadata, name: str) -> list[int]:
    return [
        block_id
        for group in metadata.metadata[1].reqs_to_recv[name].local_block_ids
        for block_id in group
    ]


def computed_blocks(metadata: UnionMetadata, name: str) -> Any:
    """What NIXL takes for present, which is where the other side's blocks begin."""
    return metadata.metadata[1].reqs_to_recv[name].local_num_computed_blocks


def end_loads(world: World, metadata: UnionMetadata) -> None:
    done = OffloadingWorkerMetadata(completed_jobs=dict.fromkeys(metadata.metadata[0].load_jobs, 1))
    output = KVConnectorOutput(kv_connector_worker_meta=done)
    host_of(world).update_connector_output(output)


@pytest.mark.parametrize("kind", [a_pull, a_shadow_pull], ids=["a_call", "a_shadow"])
def test_only_what_the_tier_does_not_hold_is_pulled(kind: Any) -> None:
    world = a_world()
    request = kind("r", tokens=188)
    put_into_the_tier(world, request, 128)
    world.add(request)
    metadata = scheduled(world)
    blocks = blocks_of(world, "r")
    assert len(blocks) == 12
    assert loaded(metadata) == blocks[:8]
    assert pulled(metadata, "r") == blocks[8:]
    assert computed_blocks(metadata, "r") == (8,)
    assert metadata.from_both == {"r"}
    assert request.status == RequestStatus.WAITING_FOR_REMOTE_KVS


def test_what_the_tier_holds_behind_the_pools_prefix_is_loaded() -> None:
    world = a_world()
    request = a_pull("r", tokens=188)
    first = normal("first", request.prompt_token_ids[:64])
    world.add(first)
    world.step()
    put_into_the_tier(world, request, 160)
    world.add(request)
    metadata = scheduled(world)
    blocks = blocks_of(world, "r")
    assert loaded(metadata) == blocks[4:10]
    assert pulled(metadata, "r") == blocks[10:]
    assert computed_blocks(metadata, "r") == (10,)


def test_a_prompt_that_the_tier_holds_whole_pulls_nothing_and_frees_the_other_side() -> None:
    world = a_world()
    request = a_pull("r", tokens=160)
    put_into_the_tier(world, request, 160)
    world.add(request)
    metadata = scheduled(world)
    assert loaded(metadata) == blocks_of(world, "r")
    assert pulled(metadata, "r") == []
    assert not metadata.metadata[1].reqs_to_recv["r"].awaiting_kvs
    assert metadata.from_both == set()


def test_without_anything_in_the_tier_everything_is_pulled() -> None:
    world = a_world()
    world.add(a_pull("r", tokens=188))
    metadata = scheduled(world)
    assert loaded(metadata) == []
    assert pulled(metadata, "r") == blocks_of(world, "r")
    assert metadata.from_both == set()


def test_a_request_whose_pull_was_given_up_is_not_loaded_before_that_has_ended() -> None:
    """Its late end would be taken for the end of the load, whose blocks it says nothing of."""
    world = a_world()
    request = a_pull("r", tokens=188)
    put_into_the_tier(world, request, 128)
    world.add(request)
    end_loads(world, scheduled(world))
    world.now_s += 6.0  # the limit is 5 s
    assert loaded(scheduled(world)) == []
    assert request.status == RequestStatus.RUNNING
    assert request.num_computed_tokens == 188


def test_a_pull_does_not_fill_a_block_that_is_still_to_be_copied_under_its_old_key() -> None:
    world = a_world(blocks=13)
    world.add(normal("n", 10 * BLOCK))
    world.step()
    (job_id,) = host_of(world).scheduler._jobs
    world.add(a_pull("r", tokens=11 * BLOCK))
    metadata = scheduled(world)
    assert metadata.metadata[0].jobs_to_flush == {job_id}


def test_blocks_that_came_only_by_a_shadow_pull_reach_the_tier() -> None:
    world = a_world()
    world.add(a_shadow_pull("s", tokens=100))
    world.step()
    blocks = blocks_of(world, "s")
    world.received = {"s"}
    world.step()
    assert "s" in world.finished
    world.step()
    stored = [
        block_id
        for status in host_of(world).scheduler._jobs.values()
        for block_id in status.deferred_fence_block_ids or ()
    ]
    assert stored == blocks[:6]
    assert host_of(world).manager.tier.entries(KvClass.SHADOW) == 6


def test_blocks_of_a_pull_that_failed_or_was_left_do_not_reach_the_tier() -> None:
    world = a_world()
    world.add(a_shadow_pull("failed", tokens=100), a_shadow_pull("left", tokens=120))
    world.step()
    world.received = world.failed = {"failed"}
    world.step()
    world.step()
    world.scheduler.finish_requests("left", RequestStatus.FINISHED_ABORTED)
    world.received = {"left"}
    world.run()
    assert host_of(world).manager.counts.stored == 0


# The worker's half


class PlayedChild:
    def __init__(self) -> None:
        self.results = KVConnectorTransferResults()

    def get_transfer_results(self, _finished: set[str]) -> KVConnectorTransferResults:
        results, self.results = self.results, KVConnectorTransferResults()
        return results

    def bind_connector_metadata(self, metadata: Any) -> None: ...


def a_worker() -> Any:
    """Only what the way of a load touches: a whole one needs an engine."""
    worker: Any = object.__new__(MultiConnector)
    worker._connectors = [PlayedChild(), PlayedChild()]
    worker.host, worker._nixl = worker._connectors
    worker._extra_async_saves = {}
    worker._half_done, worker._failed = {}, set()
    nothing = SimpleNamespace()
    worker.bind_connector_metadata(UnionMetadata((nothing, nothing), None, {"both"}))
    return worker


def received(worker: Any, host: set[str], nixl: set[str], failed: set[str] = frozenset()) -> Any:
    worker.host.results = KVConnectorTransferResults(finished_recving=host)
    worker._nixl.results = KVConnectorTransferResults(
        finished_recving=nixl, failed_recving=set(failed)
    )
    results = worker.get_transfer_results(set())
    return results.finished_recving, results.failed_recving


@pytest.mark.parametrize(
    "ends",
    [
        [({"both"}, set()), (set(), {"both"})],
        [(set(), {"both"}), ({"both"}, set())],
        [({"both"}, {"both"})],
    ],
    ids=["host_first", "nixl_first", "at_once"],
)
def test_a_load_of_two_parts_is_done_when_both_are(ends: list[tuple[set[str], set[str]]]) -> None:
    worker = a_worker()
    for host, nixl in ends[:-1]:
        assert received(worker, host, nixl) == (set(), set())
    assert received(worker, *ends[-1]) == ({"both"}, set())
    assert received(worker, {"alone"}, {"other"}) == ({"alone", "other"}, set())


def test_a_part_that_failed_is_told_when_the_other_is_done() -> None:
    worker = a_worker()
    assert received(worker, set(), {"both"}, failed={"both"}) == (set(), set())
    assert received(worker, {"both"}, set()) == ({"both"}, {"both"})
    assert received(worker, set(), {"alone"}, failed={"alone"}) == ({"alone"}, {"alone"})
