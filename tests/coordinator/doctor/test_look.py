"""This machine, and made-up ones, as the doctor sees them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml
from typer.testing import CliRunner

from bench.fake_engine import create_app
from bench.fake_engine.server import serve_in_thread
from configs.load import load_config
from coordinator.cli import app
from coordinator.doctor import command
from coordinator.doctor.facts import Facts, NixlFound
from coordinator.doctor.look import _nixl, _peers, gpu_direct, rdma_ports
from tests.coordinator.cluster_rig import ROOT
from tests.free_ports import free_ports

if TYPE_CHECKING:
    from pathlib import Path

RUNNER = CliRunner()
TINY_PD = str(ROOT / "configs" / "tiny_pd.yaml")
IN_ORDER = Facts(shm_bytes=2 << 30, nixl=NixlFound(memory="DRAM", transports=("cma/memory",)))


def test_rdma_ports_are_named_as_ucx_wants_them(tmp_path: Path) -> None:
    port = tmp_path / "sys/class/infiniband/mlx5_3/ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "link_layer").write_text("Ethernet\n")
    (found,) = rdma_ports(tmp_path)
    assert (found.name, found.active, found.link, found.rate) == (
        "mlx5_3:1", True, "Ethernet", "unknown",
    )  # fmt: skip
    assert rdma_ports(tmp_path / "none") == ()


def test_nics_reach_gpu_memory_by_a_module_or_by_the_open_driver(tmp_path: Path) -> None:
    assert gpu_direct(tmp_path) == ""
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65\n")
    assert gpu_direct(tmp_path) == "dma-buf (open kernel module)"
    (tmp_path / "sys/module/nvidia_peermem").mkdir(parents=True)
    assert gpu_direct(tmp_path) == "nvidia-peermem"


def test_engines_that_answer_tell_their_version_and_clock(tmp_path: Path) -> None:
    slo = {"ttft_s": 5.0, "tpot_s": 1.0}
    with serve_in_thread(create_app(model="small")) as url:
        port = int(url.rpartition(":")[2])
        (silent_port,) = free_ports(1)
        document = {
            "profile": "cpu",
            "models": {"small": {"path": "fake", "max_model_len": 8192, "slo": slo}},
            "instances": {
                "up": {"model": "small", "role": "colocated", "port": port},
                "down": {"model": "small", "role": "colocated", "port": silent_port},
            },
        }
        path = tmp_path / "cluster.yaml"
        path.write_text(yaml.safe_dump(document))
        (peer,), silent = _peers(load_config(path))
    assert (peer.instance, peer.version, silent) == ("up", "0.32.0", ("down",))


@pytest.mark.parametrize(("shm", "code"), [(2 << 30, 0), (1 << 20, 1)])
def test_the_exit_code_says_whether_something_must_be_put_right(
    monkeypatch: pytest.MonkeyPatch, shm: int, code: int
) -> None:
    facts = Facts(shm_bytes=shm, nixl=IN_ORDER.nixl, versions={"vllm": "0.32.0"})
    monkeypatch.setattr(command, "look", lambda config: facts)
    result = RUNNER.invoke(app, ["doctor", "--config", TINY_PD, "--json"])
    assert result.exit_code == code
    document = json.loads(result.stdout)
    assert document["ok"] is (code == 0)
    assert {"check", "status", "found", "advice"} == document["checks"][0].keys()
    table = RUNNER.invoke(app, ["doctor"])
    assert "READ of DRAM by cma/memory" in table.stdout
    assert table.exit_code == code


def test_a_wrong_configuration_ends_it_at_once(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("profile: h100\n")
    result = RUNNER.invoke(app, ["doctor", "--config", str(path)])
    assert result.exit_code == 2
    assert "models: is missing" in result.stderr


@pytest.mark.nixl
def test_nixl_tells_what_it_really_takes_here() -> None:
    found = _nixl({"UCX_TLS": "tcp,shm,cma,self"})
    assert found == NixlFound(memory="DRAM", transports=("cma/memory",))


@pytest.mark.nixl
def test_settings_that_nixl_refuses_are_an_error_and_not_a_hang() -> None:
    found = _nixl({"UCX_TLS": "shm,self"})
    assert found.transports == ()
    assert found.error
