"""The whole demo against fake engines behind the real coordinator: runs, rows, files, verdict."""

from __future__ import annotations

import json
import socket
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from typer.testing import CliRunner

from bench.cli import app
from bench.demo import story
from bench.demo.tools import Toolbox
from coordinator.local_cluster import COORDINATOR, LocalCluster, node_command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from configs.schema import ClusterConfig

SMALL_S_PER_TOKEN, LARGE_S_PER_TOKEN = 0.0001, 0.0003


def free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def a_config(folder: Path) -> Path:
    ports = iter(free_ports(7))
    slo = {"ttft_s": 5.0, "tpot_s": 0.5}
    instances = {}
    for model in ("small", "large"):
        for role in ("prefill", "decode"):
            instances[f"{model}-{role}"] = {
                "model": model,
                "role": role,
                "port": next(ports),
                "kv_port": next(ports) if role == "decode" else free_ports(1)[0],
            }
    config = {
        "profile": "cpu",
        "models": {
            "small": {"path": "./any", "dtype": "bfloat16", "max_model_len": 8192, "slo": slo},
            "large": {"path": "./any", "dtype": "float32", "max_model_len": 8192, "slo": slo},
        },
        "instances": instances,
        "coordinator": {"port": next(ports)},
    }
    path = folder / "fake_pd.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def fake_command(config_path: Path, config: ClusterConfig, name: str) -> list[str]:
    if name == COORDINATOR:
        return node_command(config_path, config, name)
    instance = config.instances[name]
    cost = SMALL_S_PER_TOKEN if instance.model == "small" else LARGE_S_PER_TOKEN
    arguments = {
        "--port": instance.port,
        "--model": instance.model,
        "--role": instance.role.value,
        "--output-tokens": 100,
        "--chunk-delay-s": 0.002,
        "--prefill-s-per-token": cost,
    }
    flat = [str(part) for pair in arguments.items() for part in pair]
    return [sys.executable, "-m", "bench.fake_engine", *flat]


@contextmanager
def a_cluster(folder: Path) -> Iterator[tuple[Path, str]]:
    config = a_config(folder)
    with LocalCluster(config, folder / "run", command=fake_command) as cluster:
        yield config, cluster.url


async def passed(_toolbox: Toolbox, path: str) -> str:
    return f"exit code 0\n{path}: 9 passed in 0.10s"


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """One demo that every test of this file looks at: its output folder and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch, a_cluster(folder) as (config, url):
        # Real test runs are test_demo_tools' matter; here they would only cost seconds.
        patch.setattr(Toolbox, "_run_test", passed)
        patch.setattr(story, "draw_gaps", lambda calls, seed: [0.0] + [0.4] * (calls - 1))
        arguments = [
            "demo",
            "--config",
            str(config),
            "--out",
            str(folder / "out"),
            "--base-url",
            url,
        ]
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    (folder / "out" / "code").write_text(str(result.exit_code))
    return folder / "out", result.output


def rows_of(out: Path, run: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (out / "calls.jsonl").read_text().splitlines()]
    return [row for row in rows if row["run"] == run]


def test_the_summary_has_the_promised_keys_and_figures(played: tuple[Path, str]) -> None:
    summary = json.loads((played[0] / "summary.json").read_text())
    keys = (
        "calls switch_calls ttft_ms_switch_off_mean ttft_ms_switch_on_mean "
        "ttft_ms_switch_floor_mean switch_tax_removed_share cached_share_switch_off "
        "cached_share_switch_on outputs_equal outputs_equal_share_bf16 shadow_tokens_computed "
        "shadow_tokens_used phases_s gaps_s conditions compared"
    )
    assert set(keys.split()) <= set(summary)
    assert summary["calls"] >= 10
    assert summary["switch_calls"] >= 5
    assert 6000 < summary["prompt_tokens_last"] < 8192 - 48
    assert summary["outputs_equal"] is True
    assert summary["outputs_equal_share_bf16"] == 1.0
    assert summary["cached_share_switch_off"] < 0.8
    assert summary["cached_share_switch_on"] >= 0.9
    assert 0 < summary["shadow_tokens_used"] <= summary["shadow_tokens_computed"]


def test_the_second_run_replays_route_prompts_lengths_and_gaps(played: tuple[Path, str]) -> None:
    off, on = rows_of(played[0], "off"), rows_of(played[0], "on")
    same = "call model is_switch prompt_tokens history_tokens output_tokens output_ids gap_s"
    assert [[row[key] for key in same.split()] for row in off] == [
        [row[key] for key in same.split()] for row in on
    ]
    assert len({row["session_id"] for row in [*off, *on]}) == 2


def test_floor_calls_find_their_whole_history_cached(played: tuple[Path, str]) -> None:
    for row in rows_of(played[0], "floor")[1:]:
        assert row["history_tokens"] - row["cached_tokens"] < 32, row


def test_the_third_run_finds_no_more_in_the_caches_than_the_first(played: tuple[Path, str]) -> None:
    again = rows_of(played[0], "again")
    assert again[-1]["is_switch"]
    for first, repeat in zip(rows_of(played[0], "off"), again, strict=False):
        assert repeat["cached_tokens"] <= first["cached_tokens"]


def test_exit_code_and_output_agree_with_the_verdict(played: tuple[Path, str]) -> None:
    out, printed = played
    broken = json.loads((out / "summary.json").read_text())["broken_promises"]
    assert (out / "code").read_text() == ("1" if broken else "0")
    assert [line[10:] for line in printed.splitlines() if line.startswith("NOT KEPT")] == broken
    assert "switch tax removed" in printed
    assert "the same weights as small" in printed
    assert "iteration_cap_s" in printed


def test_a_failed_call_ends_the_demo_with_its_reason(tmp_path: Path) -> None:
    config = a_config(tmp_path)
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    arguments = [
        "demo",
        "--config",
        str(config),
        "--out",
        str(tmp_path / "out"),
        "--base-url",
        nobody,
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert f"demo failed: {nobody}/v1/chat/completions" in result.stderr
    assert not (tmp_path / "out" / "summary.json").exists()
