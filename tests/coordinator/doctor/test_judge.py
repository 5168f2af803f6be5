"""Nodes that are in order, and nodes that lack one thing each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from configs.load import load_config
from configs.memory.plan import plan_memory
from coordinator.doctor.facts import Facts, Gpu, NixlFound, Peer, RdmaPort
from coordinator.doctor.judge import Line, Need, Status, judge

ROOT = Path(__file__).resolve().parents[3]
H100 = tuple(
    Gpu(index=index, name="NVIDIA H100 80GB HBM3", memory_mib=81559, driver="580.65.06")
    for index in range(8)
)
HCA = RdmaPort(name="mlx5_0:1", active=True, link="InfiniBand", rate="400 Gb/sec (4X NDR)")


def a_gpu_node(**changes: Any) -> Facts:
    """In order."""
    values: dict[str, Any] = {
        "gpus": H100,
        "nvlink_pairs": 28,
        "rdma": (HCA,),
        "gpu_direct": "nvidia-peermem",
        "nixl": NixlFound(memory="VRAM", transports=("cuda_ipc/cuda",)),
        "shm_bytes": 64 << 30,
        "memory_available_bytes": 1000 << 30,
        "versions": {"python": "3.12.3", "vllm": "0.32.0"},
        "clock_synchronised": True,
    }
    return Facts(**{**values, **changes})


A_PD_NODE = Need(gpus=8, is_gpu_profile=True, group=4, crosses_nodes=True, moves_kv=True)


def lines_of(facts: Facts, need: Need | None = A_PD_NODE) -> dict[str, Line]:
    return {line.check: line for line in judge(facts, need, None)}


def test_a_node_in_order_has_nothing_to_do() -> None:
    for line in lines_of(a_gpu_node()).values():
        assert (line.status, line.advice) == (Status.OK, ""), line


@pytest.mark.parametrize(
    ("changes", "check", "status", "advice"),
    [
        ({"gpus": H100[:4], "nvlink_pairs": 6}, "gpus", Status.FAIL, "gives this node 8"),
        ({"gpus": (), "gpu_error": "no driver"}, "gpus", Status.FAIL, "install NVIDIA's driver"),
        ({"nvlink_pairs": 0}, "nvlink", Status.FAIL, "nvidia-smi topo -m"),
        ({"nvlink_pairs": None}, "nvlink", Status.WARN, "nvidia-smi topo -m"),
        ({"rdma": ()}, "rdma", Status.FAIL, "would go over TCP"),
        ({"gpu_direct": ""}, "gpudirect", Status.WARN, "modprobe nvidia-peermem"),
        ({"nixl": NixlFound(error="nixl is not installed")}, "nixl", Status.FAIL, "nixl_probe"),
        (
            {"nixl": NixlFound(memory="VRAM", transports=("rc_mlx5/mlx5_0:1",))},
            "nixl", Status.WARN, "without cuda_ipc",
        ),
        (
            {"nixl": NixlFound(memory="DRAM", transports=("tcp/lo",))},
            "nixl", Status.WARN, "should have cma",
        ),
        ({"nixl": NixlFound(memory="DRAM")}, "nixl", Status.WARN, "UCX did not say"),
        ({"shm_bytes": 64 << 20}, "shm", Status.FAIL, "--shm-size"),
        ({"memlock_bytes": 8 << 20}, "memlock", Status.FAIL, "ulimit -l unlimited"),
        ({"busy_ports": ("instances.a.port: h:1 is in use",)}, "ports", Status.FAIL, ""),
        ({"versions": {"vllm": "0.31.0"}}, "versions", Status.FAIL, "install vLLM >=0.32,<0.34"),
        ({"versions": {"python": "3.12"}}, "versions", Status.WARN, "a coordinator alone"),
        ({"silent": ("small-p",)}, "engines", Status.WARN, "run doctor too"),
        ({"clock_synchronised": False}, "clock", Status.WARN, "chrony"),
    ],
)  # fmt: skip
def test_what_a_node_lacks_is_said_with_what_to_do(
    changes: dict[str, Any], check: str, status: Status, advice: str
) -> None:
    line = lines_of(a_gpu_node(**changes))[check]
    assert line.status is status
    assert advice in line.advice


@pytest.mark.parametrize(
    ("driver", "status"), [("580.65", Status.OK), ("535.1", Status.WARN), ("470.2", Status.FAIL)]
)
def test_the_driver_must_know_the_cuda_of_the_wheels(driver: str, status: Status) -> None:
    gpus = tuple(Gpu(index=0, name="H100", memory_mib=81559, driver=driver) for _ in "12")
    assert lines_of(a_gpu_node(gpus=gpus))["driver"].status is status


def test_engines_of_two_versions_are_named_with_where_they_are() -> None:
    peers = tuple(
        Peer(instance=name, url="http://x", version=version, clock_offset_s=offset)
        for name, version, offset in (("p", "0.32.0", 0.4), ("d", "0.33.0", -7.0))
    )
    lines = lines_of(a_gpu_node(peers=peers))
    assert lines["engines"].status is Status.FAIL
    assert lines["engines"].found == "0.32.0: p; 0.33.0: d"
    assert lines["clock"].found == "d -7 s"


def test_a_machine_without_gpus_fails_only_where_the_configuration_wants_them() -> None:
    bare = Facts(shm_bytes=2 << 30, memlock_bytes=8 << 20, gpu_error="nvidia-smi is missing")
    assert lines_of(bare, None)["gpus"].status is Status.WARN
    assert lines_of(bare, Need(is_gpu_profile=False))["gpus"].status is Status.OK
    # Nothing pins memory where there is no RDMA.
    assert lines_of(bare, Need(is_gpu_profile=False))["memlock"].status is Status.OK


def test_what_a_node_needs_follows_from_the_configuration() -> None:
    config = load_config(ROOT / "configs" / "h100" / "pd_four_nodes.yaml")
    plan = plan_memory(config)
    need = Need.of(config, plan, is_gpu_profile=True)
    assert (need.gpus, need.group) == (8, 4)
    assert need.crosses_nodes
    assert need.moves_kv
    assert need.host_tier_bytes == 8 * 32_000_000_000
    facts = a_gpu_node(memory_available_bytes=200 << 30)
    lines = {line.check: line for line in judge(facts, need, plan)}
    assert lines["host_memory"].status is Status.FAIL
    assert "lower its size_gb" in lines["host_memory"].advice
    assert lines["memory"].status is Status.OK
    assert lines["weights"].status is Status.WARN


def test_colocated_engines_and_pairs_inside_a_node_need_no_rdma() -> None:
    need = Need(gpus=8, is_gpu_profile=True, moves_kv=True)
    assert lines_of(a_gpu_node(rdma=()), need)["rdma"].status is Status.OK
