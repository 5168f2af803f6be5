"""What fits is planned with the numbers of the engines' logs; what does not is refused with why."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from bench.plan.command import app as plan_app
from configs.load import load_config, load_profile
from configs.memory.plan import DEFAULT_UTILIZATION, MemoryPlan, plan_memory
from coordinator.cli import app

ROOT = Path(__file__).resolve().parents[3]
PROFILES = sorted(path.name for path in (ROOT / "configs" / "h100").glob("*.yaml"))
RUNNER = CliRunner()
BIG = "meta-llama/Llama-3.1-70B-Instruct"


def a_node(**model: Any) -> dict[str, Any]:
    """Llama-3.1-70B over four GPUs of one node."""
    return {
        "profile": "h100",
        "models": {
            "big": {
                "path": BIG,
                "max_model_len": 131072,
                "slo": {"ttft_s": 9.0, "tpot_s": 0.08},
                "engine_args": {"tensor_parallel_size": 4},
                **model,
            }
        },
        "instances": {
            "big-1": {"model": "big", "role": "colocated", "port": 8111, "devices": [0, 1, 2, 3]}
        },
    }


def written(folder: Path, document: dict[str, Any]) -> Path:
    path = folder / "node.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def planned(folder: Path, document: dict[str, Any]) -> MemoryPlan:
    return plan_memory(load_config(written(folder, document)))


def test_seventy_billion_over_four_gpus_by_hand(tmp_path: Path) -> None:
    (one,) = planned(tmp_path, a_node() | {"host_tier": {}}).known
    assert one.limit_bytes == int(84.9e9 * 0.92)
    # 161 norms of 8,192 values whole, a quarter of the rest
    assert one.weight_bytes == 2_637_824 + (141_107_412_992 - 2_637_824) // 4
    assert one.kv_bytes_per_token == 2 * 2 * 128 * 2 * 80
    assert one.pool_bytes == one.limit_bytes - one.weight_bytes - 3_000_000_000
    assert one.pool_tokens == one.pool_bytes // (81_920 * 32) * 32
    assert one.shadow_tokens == one.pool_tokens // 32 // 4 * 32
    assert one.host_tier_tokens == 32_000_000_000 // 81_920


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_of_h100_is_known_whole_and_fits(name: str) -> None:
    plan = plan_memory(load_config(ROOT / "configs" / "h100" / name))
    assert plan.problems == ()
    assert plan.unknown == ()
    assert all(one.pool_tokens > 300_000 for one in plan.known)


def test_a_profile_that_fits_passes_both_commands() -> None:
    path = str(ROOT / "configs" / "h100" / "pd_four_nodes.yaml")
    assert RUNNER.invoke(app, ["config", "check", path]).exit_code == 0
    result = RUNNER.invoke(plan_app, ["memory", path, "--json"])
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["problems"] == []
    assert document["host_tier_bytes"]["node-1"] == 8 * 32_000_000_000


def test_the_pool_on_cpus_is_the_one_of_the_engines_logs() -> None:
    """vLLM 0.32 on these: "GPU KV cache size: 46,592 tokens" (large), 1,048,576 (tiny-a)."""
    for file, instance, tokens in (
        ("local_pd", "large-p", 46_592),
        ("tiny_pd", "tiny-a-p", 1_048_576),
    ):
        config = load_config(ROOT / "configs" / f"{file}.yaml")
        if not Path(config.models[config.instances[instance].model].path).is_dir():
            pytest.skip("the model files are not prepared (make models)")
        plan = plan_memory(config)
        assert {one.instance: one.pool_tokens for one in plan.known}[instance] == tokens


@pytest.mark.parametrize(
    ("model", "instance", "message"),
    [
        (
            {"engine_args": {"tensor_parallel_size": 1}},
            {"devices": [0]},
            r"big-1: 141\.1 GB of weights \(141\.1 GB over 1 GPU\) and 3\.0 GB of overhead do not "
            r"leave room for KV in the 78\.1 GB",
        ),
        (
            {"engine_args": {"tensor_parallel_size": 2}},
            {"devices": [0, 1]},
            r"max_model_len 131072 needs a KV pool of 131104 tokens \(21\.5 GB\), got 27\d{3} "
            r"\(4\.6 GB beside 70\.6 GB of weights\); vLLM would not start",
        ),
        (
            {"engine_args": {"tensor_parallel_size": 16}},
            {"devices": None},
            r"tensor_parallel_size must be at most 8, got 16: a group stays inside a node",
        ),
        ({}, {"devices": [0, 1]}, r"big-1\.devices: must be 4 different GPUs .*got \[0, 1\]"),
        ({}, {"devices": [0, 1, 1, 2]}, r"must be 4 different GPUs"),
        ({}, {"devices": [6, 7, 8, 9]}, r"a node has GPUs 0 to 7, got \[8, 9\]"),
        (
            {"engine_args": {"tensor_parallel_size": 3}},
            {"devices": [0, 1, 2]},
            "tensor_parallel_size must divide the model's 64 attention heads, got 3",
        ),
    ],
    ids=["weights", "context", "nodes", "devices", "twice", "beyond", "heads"],
)
def test_what_cannot_fit_is_refused_with_the_numbers(
    tmp_path: Path, model: dict[str, Any], instance: dict[str, Any], message: str
) -> None:
    document = a_node(**model)
    document["instances"]["big-1"] |= instance
    path = written(tmp_path, document)
    problems = plan_memory(load_config(path)).problems
    assert any(re.search(message, problem) for problem in problems), problems


@pytest.mark.parametrize(
    ("group", "arguments"),
    [(app, ["config", "check"]), (app, ["up", "--run-dir", "run"]), (plan_app, ["memory"])],
    ids=["check", "up", "plan"],
)
def test_every_command_refuses_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: Any, arguments: list[str]
) -> None:
    document = a_node(engine_args={"tensor_parallel_size": 1})
    path = written(tmp_path, document)
    monkeypatch.chdir(tmp_path)
    result = RUNNER.invoke(group, [*arguments, str(path)])
    assert result.exit_code == 1
    assert f"{path}: instances.big-1.devices: must be 1 different GPUs" in result.stderr
    assert f"{path}: instances.big-1: 141.1 GB of weights" in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_gpu_is_given_to_one_engine_unless_they_share_it_by_name(tmp_path: Path) -> None:
    document = a_node()
    document["instances"]["big-2"] = document["instances"]["big-1"] | {"port": 8112}
    problems = planned(tmp_path, document).problems
    assert any("GPU 0 of 127.0.0.1 would be used to 1.84" in problem for problem in problems)
    document["instances"]["big-2"]["host"] = "node-2"
    assert planned(tmp_path, document).problems == ()


def test_what_no_file_knows_is_said_and_not_refused(tmp_path: Path) -> None:
    document = a_node(path="org/unheard-of")
    plan = planned(tmp_path, document)
    assert plan.problems == ()
    assert [one.instance for one in plan.unknown] == ["big-1"]
    result = RUNNER.invoke(plan_app, ["memory", str(written(tmp_path, document))])
    assert result.exit_code == 0
    assert "instances.big-1: not planned: no folder" in result.stdout


def test_a_wrong_file_ends_the_command_with_its_mistakes(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("profile: h100\n")
    result = RUNNER.invoke(plan_app, ["memory", str(path)])
    assert result.exit_code == 1
    assert "models: is missing" in result.stderr


def test_fp8_halves_the_kv_and_a_smaller_share_the_pool(tmp_path: Path) -> None:
    args = {"tensor_parallel_size": 4, "kv_cache_dtype": "fp8", "gpu_memory_utilization": 0.8}
    (one,) = planned(tmp_path, a_node(engine_args=args)).known
    assert one.kv_bytes_per_token == 40_960
    assert one.limit_bytes == int(84.9e9 * 0.8)


@pytest.mark.vllm_cpu
def test_vllms_default_share_of_a_gpu_is_the_one_planned_with() -> None:
    from vllm.config import CacheConfig

    assert CacheConfig().gpu_memory_utilization == DEFAULT_UTILIZATION
    gpu = load_profile("h100").gpu
    assert gpu is not None
    assert gpu.per_node == 8
