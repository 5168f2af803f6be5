"""A local cluster leaves nothing behind, however it ends, and says clearly what did not start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from multiprocessing import resource_tracker, shared_memory
from typing import TYPE_CHECKING

import pytest
import yaml

from coordinator import processes
from coordinator.local_cluster import COORDINATOR, LocalCluster, node_command
from coordinator.ports import probe
from coordinator.run_state import RunDirBusy, is_owned, read_state
from coordinator.start_errors import ClusterStartError
from engine.launch import import_environment
from tests.coordinator.cluster_rig import (
    ROOT,
    a_cluster,
    a_config,
    alive,
    an_engine_by_hand,
    commands_naming,
    family,
    stand_ins,
    until,
)
from tests.free_ports import free_ports

if TYPE_CHECKING:
    from pathlib import Path

OWNER = """
import time
from pathlib import Path
from tests.coordinator.cluster_rig import a_cluster
with a_cluster(Path({folder!r}), first="core,segment,strays", second="stubborn") as cluster:
    print(cluster.url, *cluster.survivors(), flush=True)
    time.sleep(300)
"""


def status_in_file(folder: Path, name: str) -> str:
    state = read_state(folder / "run")
    assert state is not None
    return state.instances[name].status


def test_everything_answers_inside_the_block_and_is_gone_after_it(tmp_path: Path) -> None:
    with a_cluster(tmp_path, first="core", second="core") as cluster:
        assert probe(f"{cluster.url}/ready") == ""
        assert {state.status for state in cluster.state.instances.values()} == {"ready"}
        assert is_owned(tmp_path / "run")
        pids = family(cluster)
        assert len(pids) == 5
    assert alive(pids) == []
    assert not is_owned(tmp_path / "run")
    state = read_state(tmp_path / "run")
    assert state is not None
    assert state.status == "stopped"
    assert {instance.status for instance in state.instances.values()} == {"stopped"}


@pytest.mark.parametrize("behaviour", ["core", "strays", "stubborn", "core,strays,stubborn"])
def test_whatever_an_instance_starts_or_ignores_it_is_gone(tmp_path: Path, behaviour: str) -> None:
    with a_cluster(tmp_path, first=behaviour) as cluster:
        pids = family(cluster)
    assert alive(pids) == []


def test_a_frozen_instance_is_stopped_too(tmp_path: Path) -> None:
    with a_cluster(tmp_path, first="core") as cluster:
        pids = family(cluster)
        cluster.kill("first", signal.SIGSTOP)
    assert alive(pids) == []


def test_an_instance_that_fails_is_named_with_its_cause_and_the_others_stop(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, first="core", second="fails")
    with pytest.raises(ClusterStartError) as error:
        cluster.start()
    text = str(error.value)
    assert text.startswith("second exited with code 1: ValueError: no such folder: x")
    assert str(tmp_path / "run" / "logs" / "second.log") in text
    assert commands_naming(str(cluster.config.instances["first"].port)) == []
    assert not is_owned(tmp_path / "run")
    state = read_state(tmp_path / "run")
    assert state is not None
    assert (state.status, state.error) == ("failed", text)


def test_an_instance_that_never_answers_ends_the_start_in_time(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, start_timeout_s=1.0, first="mute,core")
    with pytest.raises(ClusterStartError, match=r"not ready after 1 s:\nfirst http.*refused"):
        cluster.start()
    assert commands_naming(str(cluster.config.instances["first"].port)) == []


def test_a_port_in_use_is_named_with_its_instance_before_anything_starts(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    port = cluster.config.instances["second"].port
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(ClusterStartError, match=rf"instances.second.port: 127.0.0.1:{port} is"):
            cluster.start()
    assert not (tmp_path / "run" / "logs").exists()


def test_an_instance_cannot_take_the_name_of_the_coordinator(tmp_path: Path) -> None:
    config = a_config(tmp_path)
    cluster = yaml.safe_load(config.read_text())
    cluster["instances"][COORDINATOR] = cluster["instances"].pop("first")
    config.write_text(yaml.safe_dump(cluster))
    with pytest.raises(ClusterStartError, match=r"instances.coordinator: this name"):
        LocalCluster(config, tmp_path / "run", command=stand_ins()).start()


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    config = a_config(tmp_path)
    cluster = yaml.safe_load(config.read_text())
    cluster["instances"]["first"]["host"] = "192.0.2.1"
    config.write_text(yaml.safe_dump(cluster))
    with pytest.raises(ClusterStartError, match="not an address of this machine"):
        LocalCluster(config, tmp_path / "run", command=stand_ins()).start()


def test_a_run_directory_has_one_cluster_at_a_time(tmp_path: Path) -> None:
    with a_cluster(tmp_path) as cluster:
        with pytest.raises(RunDirBusy, match=rf"already running in .*{cluster.url}.*--run-dir"):
            a_cluster(tmp_path).start()
        assert probe(f"{cluster.url}/ready") == ""


def test_two_clusters_share_a_machine(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    with a_cluster(folders[0], first="core") as one:
        with a_cluster(folders[1], first="core") as two:
            assert probe(f"{two.url}/ready") == ""
        assert probe(f"{one.url}/ready") == ""
        assert len(family(one)) == 4


def test_a_killed_instance_is_reported_and_stays_down_until_restarted(tmp_path: Path) -> None:
    with a_cluster(tmp_path, first="core") as cluster:
        first = cluster.state.instances["first"]
        old = cluster.pid("first")
        cluster.kill("first")
        assert until(lambda: status_in_file(tmp_path, "first") == "exited")
        assert first.exit_text == "was killed by SIGKILL"
        assert probe(first.url + "/health") != ""
        cluster.restart("first")
        assert cluster.pid("first") != old
        assert probe(first.url + "/health") == ""
        assert first.status == "ready"


def test_the_rest_of_an_instance_goes_with_its_server(tmp_path: Path) -> None:
    with a_cluster(tmp_path, first="core") as cluster:
        before = family(cluster)
        os.kill(cluster.pid("first"), signal.SIGKILL)  # the server alone, its core lives on
        assert until(lambda: cluster.state.instances["first"].status == "exited")
        assert until(lambda: len(alive(before)) == 2)


def test_the_end_of_the_coordinator_ends_the_wait(tmp_path: Path) -> None:
    with a_cluster(tmp_path) as cluster:
        cluster.kill(COORDINATOR, signal.SIGKILL)
        assert cluster.wait(timeout_s=20.0) == "was killed by SIGKILL"


def test_an_attached_instance_is_probed_but_never_stopped(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with an_engine_by_hand(port) as pid:
        config = a_config(tmp_path, attach_url=f"http://127.0.0.1:{port}")
        with LocalCluster(config, tmp_path / "run", command=stand_ins()) as cluster:
            assert cluster.state.instances["second"].status == "ready"
            assert len(family(cluster)) == 2
        assert alive([pid]) == [pid]


def test_an_attached_instance_that_does_not_answer_is_named(tmp_path: Path) -> None:
    config = a_config(tmp_path, attach_url=f"http://127.0.0.1:{free_ports(1)[0]}")
    cluster = LocalCluster(config, tmp_path / "run", command=stand_ins(), start_timeout_s=1.0)
    with pytest.raises(ClusterStartError, match=r"second http.*refused"):
        cluster.start()


def test_segments_of_killed_instances_go_and_those_of_others_stay(tmp_path: Path) -> None:
    theirs = shared_memory.SharedMemory(create=True, size=4096)
    try:
        with a_cluster(tmp_path, first="segment,core", second="segment") as cluster:
            ours = {
                name: processes.SHARED_MEMORY / f"psm_test_{cluster.config.instances[name].port}"
                for name in ("first", "second")
            }
            assert all(segment.exists() for segment in ours.values())
            cluster.kill("first")
            assert until(lambda: not ours["first"].exists())
            assert ours["second"].exists()
        assert not ours["second"].exists()
        assert (processes.SHARED_MEMORY / theirs.name).exists()
    finally:
        theirs.close()
        theirs.unlink()


def test_a_segment_whose_name_was_given_to_somebody_else_stays() -> None:
    theirs = shared_memory.SharedMemory(create=True, size=4096)
    try:
        assert processes.remove_segments({theirs.name: 1}) == []
        inode = (processes.SHARED_MEMORY / theirs.name).stat().st_ino
        assert processes.remove_segments({theirs.name: inode}) == []  # still mapped, by this test
    finally:
        theirs.close()
    assert processes.remove_segments({theirs.name: inode}) == [theirs.name]
    resource_tracker.unregister(f"/{theirs.name}", "shared_memory")


def test_a_cluster_whose_own_process_is_killed_leaves_nothing(tmp_path: Path) -> None:
    script = OWNER.format(folder=str(tmp_path))
    environment = {**os.environ, **import_environment()}
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    ) as owner:
        assert owner.stdout is not None
        _, *pids = owner.stdout.readline().split()
        owner.kill()
    family_pids = [int(pid) for pid in pids]
    assert len(family_pids) >= 5
    assert until(lambda: alive(family_pids) == [])
    # The warden keeps the run directory until it is done.
    assert until(lambda: not is_owned(tmp_path / "run"))
    assert [path.name for path in processes.SHARED_MEMORY.glob("psm_test_*")] == []


def test_the_command_of_an_instance_is_the_node_of_its_role(tmp_path: Path) -> None:
    path = a_config(tmp_path)
    cluster = LocalCluster(path, tmp_path / "run")
    assert node_command(path, cluster.config, "first")[1:] == [
        *("-m", "colocated", "--config", str(path), "--instance", "first")
    ]
    assert node_command(path, cluster.config, COORDINATOR)[1:] == [
        *("-m", "coordinator", "--config", str(path))
    ]
