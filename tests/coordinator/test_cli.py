"""The command line: what it prints, where, and with which exit code."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from coordinator import processes
from coordinator.cli import app
from coordinator.ports import probe
from coordinator.progress import state_table
from coordinator.run_state import (
    RUN_DIR_VARIABLE,
    ClusterState,
    InstanceState,
    is_owned,
    read_state,
)
from engine.launch import import_environment
from tests.coordinator.cluster_rig import ROOT, until
from tests.free_ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNNER = CliRunner()
TINY_PD = str(ROOT / "configs" / "tiny_pd.yaml")


def shadowprefill(*arguments: str, run_dir: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The console script, as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "shadowprefill", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment_for(run_dir),
    )


def environment_for(run_dir: Path | None) -> dict[str, str]:
    chosen = {} if run_dir is None else {RUN_DIR_VARIABLE: str(run_dir)}
    return {**os.environ, **import_environment(), **chosen}


@pytest.fixture
def attached(tmp_path: Path) -> Iterator[Path]:
    """A configuration of two fake engines that run already: `up` starts the coordinator alone."""
    small, large, front = free_ports(3)
    model = {"path": "fake", "max_model_len": 8192, "slo": {"ttft_s": 5.0, "tpot_s": 1.0}}
    document = {
        "profile": "cpu",
        "models": {"small": model, "large": model},
        "instances": {
            name: {
                "model": name,
                "role": "colocated",
                "port": port,
                "attach_url": f"http://127.0.0.1:{port}",
            }
            for name, port in (("small", small), ("large", large))
        },
        "coordinator": {"port": front},
    }
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump(document))
    with contextlib.ExitStack() as stack:
        for name, port in (("small", small), ("large", large)):
            stack.enter_context(a_fake_engine(name, port))
        yield path


@contextlib.contextmanager
def a_fake_engine(model: str, port: int) -> Iterator[None]:
    argv = [sys.executable, "-m", "bench.fake_engine", "--model", model, "--port", str(port)]
    with subprocess.Popen(argv, env=environment_for(None), stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


def test_up_leaves_a_cluster_that_status_shows_and_down_stops(
    attached: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    try:
        up = shadowprefill("up", "--detach", str(attached), run_dir=run_dir)
        assert up.returncode == 0, up.stderr
        state = read_state(run_dir)
        assert state is not None
        assert "coordinator: ready after" in up.stdout
        assert f"curl {state.url}/v1/chat/completions" in up.stdout
        assert f'OpenAI(base_url="{state.url}/v1"' in up.stdout
        assert f"shadowprefill down --run-dir {run_dir}" in up.stdout
        assert probe(f"{state.url}/ready") == ""

        status = shadowprefill("status", run_dir=run_dir)
        assert status.returncode == 0
        assert re.search(r"small +colocated +small +ready .*attached", status.stdout)
        assert re.search(rf"coordinator .*ready .*{state.url}", status.stdout)

        again = shadowprefill("up", str(attached), run_dir=run_dir)
        assert again.returncode == 1
        assert "a cluster is already running" in again.stderr
        assert str(state.url) in again.stderr
    finally:
        down = shadowprefill("down", run_dir=run_dir)
    assert down.returncode == 0
    assert not is_owned(run_dir)
    assert processes.started_ticks(state.supervisor_pid) is None
    assert probe(f"{state.url}/health") != ""
    stopped = shadowprefill("status", run_dir=run_dir)
    assert (stopped.returncode, "stopped" in stopped.stdout) == (1, True)
    assert "nothing is running" in shadowprefill("down", run_dir=run_dir).stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_up_in_the_foreground_stops_everything_on_a_signal(
    attached: Path, tmp_path: Path, number: signal.Signals
) -> None:
    run_dir = tmp_path / "run"
    argv = [sys.executable, "-m", "shadowprefill", "up", str(attached), "--run-dir", str(run_dir)]
    with subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        text=True,
        env=environment_for(None),
        # A shell that runs the tests in the background makes its children ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert until(lambda: status_of(run_dir) == "ready")
        state = read_state(run_dir)
        assert state is not None
        coordinator_pid = state.instances["coordinator"].pid
        assert coordinator_pid is not None
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "no process is left" in out
    assert processes.started_ticks(coordinator_pid) is None
    assert status_of(run_dir) == "stopped"


def test_a_killed_supervisor_is_told_apart_from_a_running_one(
    attached: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    assert shadowprefill("up", "--detach", str(attached), run_dir=run_dir).returncode == 0
    state = read_state(run_dir)
    assert state is not None
    os.kill(state.supervisor_pid, signal.SIGKILL)
    assert shadowprefill("down", run_dir=run_dir).returncode == 0
    assert not is_owned(run_dir)
    status = shadowprefill("status", run_dir=run_dir)
    assert (status.returncode, "ended unexpectedly" in status.stdout) == (1, True)


def test_a_start_that_fails_says_why_in_both_modes(attached: Path, tmp_path: Path) -> None:
    document = yaml.safe_load(attached.read_text())
    (nobody,) = free_ports(1)
    document["instances"]["large"]["attach_url"] = f"http://127.0.0.1:{nobody}"
    attached.write_text(yaml.safe_dump(document))
    for mode in ([], ["--detach"]):
        up = shadowprefill(
            "up", *mode, "--start-timeout", "1", str(attached), run_dir=tmp_path / "run"
        )
        assert up.returncode == 1
        assert f"large http://127.0.0.1:{nobody}" in up.stderr
        assert "refused" in up.stderr
        assert not is_owned(tmp_path / "run")


def status_of(run_dir: Path) -> str:
    state = read_state(run_dir)
    return "" if state is None else state.status


def test_config_check_prints_the_effective_configuration() -> None:
    result = RUNNER.invoke(app, ["config", "check", TINY_PD])
    assert result.exit_code == 0
    effective = yaml.safe_load(result.stdout)
    assert effective["shadow"]["beta"] == 0.5
    assert effective["coordinator"]["max_body_bytes"] == 32 * 1024 * 1024


def test_config_check_prints_every_error_at_once(tmp_path: Path) -> None:
    document = yaml.safe_load(Path(TINY_PD).read_text())
    document["shadow"] = {"beta": 7, "no_such_key": 1}
    document["instances"]["tiny-a-p"]["port"] = 99999
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(document))
    result = RUNNER.invoke(app, ["config", "check", str(path)])
    assert result.exit_code == 1
    for part in ("shadow.beta", "7", "no_such_key", "instances.tiny-a-p.port", "99999"):
        assert part in result.stderr
    assert result.stdout == ""


def test_engine_args_prints_a_command_line_to_paste() -> None:
    arguments = ["engine-args", "--config", TINY_PD, "--instance", "tiny-a-p"]
    result = RUNNER.invoke(app, arguments)
    assert result.exit_code == 0
    assert "PYTHONHASHSEED=0" in result.stdout
    assert "--scheduler-cls prefill_node.scheduler.PrefillScheduler" in result.stdout
    unknown = RUNNER.invoke(app, [*arguments[:-1], "nobody"])
    assert unknown.exit_code == 1
    assert "no instance 'nobody'" in unknown.stderr


def test_a_command_with_a_bad_file_ends_with_its_errors(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.yaml")
    for arguments in (["up", missing], ["coordinator", "--config", missing]):
        result = RUNNER.invoke(app, arguments)
        assert result.exit_code == 1
        assert "none.yaml" in result.stderr


def test_nothing_was_ever_started_in_an_empty_folder(tmp_path: Path) -> None:
    status = RUNNER.invoke(app, ["status", "--run-dir", str(tmp_path)])
    assert (status.exit_code, "no cluster was started" in status.stdout) == (1, True)
    down = RUNNER.invoke(app, ["down", "--run-dir", str(tmp_path)])
    assert (down.exit_code, "nothing is running" in down.stdout) == (0, True)


def test_status_shows_where_an_engine_tells_of_itself() -> None:
    url = "http://127.0.0.1:8131/metrics"
    with_metrics = InstanceState(
        role="colocated", model="small", url="http://127.0.0.1:8111", log=None, metrics_url=url
    )
    without = InstanceState(role="colocated", model="large", url="http://127.0.0.1:8112", log=None)
    console = Console(width=240, record=True, file=io.StringIO())
    console.print(state_table(a_state(small=with_metrics, large=without)))
    shown = console.export_text()
    assert url in shown
    console.print(state_table(a_state(large=without)))
    assert "metrics" not in console.export_text()


def test_a_long_last_line_shortens_nothing_but_itself(tmp_path: Path) -> None:
    log = tmp_path / "large-p.log"
    log.write_text(f"{'loading ' * 60}\n")
    starting = InstanceState(
        role="prefill", model="large", url="http://127.0.0.1:8113", log=str(log), pid=31337
    )
    console = Console(width=110, record=True, file=io.StringIO())
    console.print(state_table(a_state(**{"large-p": starting}), with_last_line=True))
    row = console.export_text().splitlines()[1]
    for whole in ("large-p", "prefill", "large", "starting", "31337", "http://127.0.0.1:8113"):
        assert whole in row.split()
    assert "loading" in row


def a_state(**instances: InstanceState) -> ClusterState:
    return ClusterState(
        config="a.yaml",
        url=None,
        models=[],
        supervisor_pid=1,
        supervisor_ticks=None,
        since_unix_s=0.0,
        instances=instances,
    )


def test_the_console_script_shows_its_version_and_its_commands() -> None:
    assert shadowprefill("--version").stdout.startswith("shadowprefill ")
    shown = shadowprefill("--help").stdout
    commands = ("up", "down", "status", "tune", "config", "engine-args", "coordinator", "trace")
    for command in commands:
        assert re.search(rf"\b{command}\b", shown), command


def test_the_command_line_needs_no_engine() -> None:
    code = (
        "import sys, coordinator.cli\n"
        "print(sorted({'vllm', 'torch', 'nixl'} & {name.split('.')[0] for name in sys.modules}))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment_for(None),
    )
    assert result.stdout.strip() == "[]"
