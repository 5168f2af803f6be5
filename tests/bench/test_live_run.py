"""The live benchmark's runner against fake engines: what it sends, keeps, skips and refuses."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from rich.console import Console

from bench.fake_engine import FakeApp, create_app, serve_in_thread
from bench.live.cells import Cell, smoke_matrix
from bench.live.engine_facts import read_traces
from bench.live.engines import Engines
from bench.live.errors import EngineUnwilling
from bench.live.options import Options
from bench.live.settings import SMOKE
from bench.live.store import ResultsMixed, Store
from bench.live.story import deltas_of, run_live
from policy.vocabulary import Controller
from tests.bench.live_rows import CALIBRATION, a_call, a_normal, a_result
from tests.coordinator.cluster_rig import commands_naming
from tests.free_ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.live.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
TINY = replace(
    SMOKE,
    window_s=2.0,
    drain_s=3.0,
    call_timeout_s=5.0,
    calls_per_session=3,
    task_words=60,
    result_words_median=20.0,
    gap_median_s=0.1,
    saturation_s=0.6,
    saturation_warm_up_s=0.1,
    saturation_callers=2,
    capacity_test_s=0.5,
)


def an_app(model: str) -> FakeApp:
    return create_app(model=model, output_tokens=6, chunk_delay_s=0.01, prefill_s_per_token=0.0005)


@contextlib.contextmanager
def two_engines(folder: Path) -> Iterator[tuple[Path, list[FakeApp]]]:
    """A configuration of two fake engines that run, and a coordinator that does not."""
    apps = [an_app("small"), an_app("large")]
    with serve_in_thread(apps[0]) as first, serve_in_thread(apps[1]) as second:
        model = {"path": "fake", "max_model_len": 8192, "slo": {"ttft_s": 1.0, "tpot_s": 0.2}}
        instances = {
            f"{app.state.engine.settings.model}-1": {
                "model": app.state.engine.settings.model,
                "role": "colocated",
                "port": int(url.rpartition(":")[2]),
                "attach_url": url,
            }
            for app, url in zip(apps, (first, second), strict=True)
        }
        config = {
            "profile": "cpu",
            "models": {"small": model, "large": model},
            "instances": instances,
            "coordinator": {"port": free_ports(1)[0]},
        }
        path = folder / "cluster.yaml"
        path.write_text(yaml.safe_dump(config))
        yield path, apps


def options_of(
    config: Path, folder: Path, chosen: Sequence[Cell], settings: Settings = TINY
) -> Options:
    return Options(
        config=config, folder=folder, settings=settings, wanted=smoke_matrix(), chosen=chosen
    )


def said(options: Options) -> tuple[dict | None, str]:
    console = Console(width=200)
    with console.capture() as shown:
        result = run_live(options, console)
    return result, shown.get()


def normal_bodies(app: FakeApp) -> list[tuple[int, int]]:
    """Prompt and output lengths of the completions that are no calibration, in order."""
    return [
        (len(one.body["prompt"]), one.body["max_tokens"])
        for one in app.state.engine.requests
        if one.path == "/v1/completions" and one.body.get("return_token_ids")
    ]


def test_cells_are_measured_kept_compared_and_not_run_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with two_engines(tmp_path) as (config, apps):
        result, text = said(options_of(config, out, smoke_matrix()))
        engine = apps[0].state.engine
        changes = [change["controller"] for change in engine.changes]
        traces = [change["trace_path"] for change in engine.changes]
        requests = len(engine.requests)
        again, more_text = said(options_of(config, out, smoke_matrix()))
        assert len(engine.requests) == requests
    assert result is not None
    off, on = result["cells"]
    assert (off["controller"], on["controller"]) == ("off", "harvest-slo")
    assert off["completed"] == on["completed"] > 0
    assert off["failed_calls"] == {
        "normal": {"total": 0, "per_repeat": [0]},
        "routed": {"total": 0, "per_repeat": [0]},
    }
    assert result["checks"] == {"prompts_equal": True, "outputs_as_recorded_share": 1.0}
    assert {"off", "harvest-slo"} <= set(changes)
    assert traces[-2].endswith("load0.5-harvest-slo-r1-small-1.jsonl")
    assert traces[-1] == ""
    assert off["shadow_tokens_computed"]["total"] == 0
    assert on["shadow_tokens_computed"]["total"] > 0
    assert "0 of 2 cells to run, 2 are on disk" in more_text
    assert again == result
    assert re.search(r"load0\.5-off-r1 .* left", text)


@pytest.mark.parametrize("is_given", [False, True])
def test_each_controller_runs_with_its_own_credit(tmp_path: Path, is_given: bool) -> None:
    """`harvest` with the small credit of `harvest-slo` would be a weaker baseline than it is."""
    with two_engines(tmp_path) as (config, apps):
        document = yaml.safe_load(config.read_text())
        document["coordinator"]["engine_secret"] = "s3cret"
        if is_given:
            document["shadow"] = {"delta": 0.07}
        config.write_text(yaml.safe_dump(document))
        deltas = deltas_of(config)
        with Engines(config, tmp_path / "run", 128, deltas) as engines:
            for controller in (Controller.HARVEST, Controller.HARVEST_SLO):
                engines.prepare(controller, controller.value)
        changes = apps[0].state.engine.changes
        xargs = [one.body["vllm_xargs"] for one in apps[0].state.engine.generating()]
    own = {Controller.HARVEST: 0.1, Controller.HARVEST_SLO: 0.025}
    for change in changes:
        controller = Controller(change["controller"])
        assert change["delta"] == (0.07 if is_given else own[controller])
    assert len(changes) == 2
    assert all(one.get("shadowprefill_secret") for one in xargs)


def test_a_run_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    """SIGKILL in the middle of the second cell: the first is kept, the second begins anew."""
    out = tmp_path / "results"
    script = (
        "import sys, dataclasses; from pathlib import Path; from rich.console import Console\n"
        "from bench.live.story import run_live\n"
        "from tests.bench.test_live_run import options_of, smoke_matrix\n"
        "run_live(options_of(Path(sys.argv[1]), Path(sys.argv[2]), smoke_matrix()), Console())\n"
    )
    with two_engines(tmp_path) as (config, _):
        with subprocess.Popen(
            [sys.executable, "-c", script, str(config), str(out)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
        ) as process:
            first = out / "load0.5-off-r1.jsonl"
            deadline = time.monotonic() + 60
            while not first.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(1.0)
            process.send_signal(signal.SIGKILL)
        kept = first.read_bytes()
        assert not (out / "load0.5-harvest-slo-r1.jsonl").exists()
        time.sleep(1.0)  # the warden ends the coordinator that the run could not
        result, text = said(options_of(config, out, smoke_matrix()))
    assert "1 of 2 cells to run, 1 are on disk" in text
    assert first.read_bytes() == kept
    assert result is not None
    assert result["cells_done"] == 2


def test_sigterm_stops_what_was_started(tmp_path: Path) -> None:
    with two_engines(tmp_path) as (config, _):
        command = [sys.executable, "-m", "bench.live", "--config", str(config)]
        with subprocess.Popen(
            [*command, "--result-dir", str(tmp_path)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("engines are up"):
                    break
            time.sleep(1.0)
            process.send_signal(signal.SIGTERM)
            assert "interrupted" in process.stdout.read()
        assert process.returncode == 130
    assert commands_naming(str(tmp_path)) == []


def test_cells_of_other_settings_are_not_mixed_in(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with two_engines(tmp_path) as (config, _):
        said(options_of(config, out, smoke_matrix()[:1]))
        other = replace(TINY, window_s=3.0)
        with pytest.raises(ResultsMixed, match="--fresh"):
            said(options_of(config, out, [], other))
        fresh = replace(options_of(config, out, [], other), fresh=True)
        result, text = said(fresh)
    assert result is None
    assert "nothing to report" in text


def test_a_failed_call_is_a_row_and_not_the_end(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with two_engines(tmp_path) as (config, apps):
        said(options_of(config, out, smoke_matrix()[:1]))
        (out / "load0.5-off-r1.jsonl").unlink()
        apps[0].state.engine.faults.die_mid_stream(after_chunks=3, times=2)
        result, _ = said(options_of(config, out, smoke_matrix()[:1]))
    assert result is not None
    failed = result["cells"][0]["failed_calls"]
    assert sum(one["total"] for one in failed.values()) == 2


def test_no_cell_begins_that_would_end_too_late(tmp_path: Path) -> None:
    with two_engines(tmp_path) as (config, _):
        options = replace(options_of(config, tmp_path / "out", smoke_matrix()), max_s=1.0)
        result, text = said(options)
    assert result is None
    assert "2 cells are left for the next run" in text


def test_attached_engines_that_take_no_control_are_not_measured(tmp_path: Path) -> None:
    with two_engines(tmp_path) as (config, apps):
        for app in apps:
            app.state.engine.takes_control = False
        with pytest.raises(EngineUnwilling, match=r"small-1.*not ours to start"):
            said(options_of(config, tmp_path / "out", smoke_matrix()))


def test_a_cell_file_is_whole_or_not_there(tmp_path: Path) -> None:
    store = Store(tmp_path, "h")
    cell = Cell(load=0.3, controller=Controller.OFF, repeat=1)
    (tmp_path / f".{cell.name}.jsonl.part").write_bytes(b'{"load": 0.3, "contr')
    assert store.cell(cell) is None
    result = a_result(Controller.OFF, [a_normal(itl_ms=(1.0, 2.0)), a_call(error="gone")])
    store.keep_cell(cell, result)
    assert store.cell(cell) == result
    store.keep_calibration(CALIBRATION)
    assert Store(tmp_path, "h").calibration() == CALIBRATION


TRACE = b"""\
{"kind":"header","version":1,"instance":"small-1"}
{"kind":"step","t_s":1.0,"step_s":0.1,"reason":"no_job","arrivals":[[0.07,"foreground"]]}
{"kind":"step","t_s":1.5,"step_s":0.4,"reason":"granted","shadow_tokens":200}
{"kind":"step","t_s":1.6,"step_s":0.1,"arrivals":[[0.3,"shadow"],[0.0,"nothing"]]}
{"kind":"event","t_s":1.6,"event":"end"}
"""


def test_waits_are_those_that_the_engines_traced(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(TRACE)
    found = read_traces([path])
    assert found is not None
    assert (found.steps, found.shadow_steps, found.shadow_tokens) == (3, 1, 200)
    assert (found.max_arrival_wait_ms, found.max_foreground_wait_ms) == (300.0, 70.0)
    assert found.shadow_step_max_ms == 400.0
    assert found.arrival_waits_ms == (300.0,)
    assert found.grants == {"no_job": 1, "granted": 1}
    assert read_traces([]) is None
