"""Strict simulation files: what is committed loads, and every mistake is named at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.study.approaches import ApproachName
from bench.study.load import load_sim_config, sim_yaml
from bench.study.schema import HourWindow
from configs.errors import ConfigError
from configs.strict_yaml import read_yaml

ROOT = Path(__file__).resolve().parents[3]
COMMITTED = sorted((ROOT / "configs" / "sim").glob("*.yaml"))
GOOD = """
models:
  Qwen2.5-7B: {colocated: 2}
  Llama-3.1-8B: {prefill: 1, decode: 1}
sessions:
  workload: {kind: drawn, benchmark: FusionBench, per_s: 0.1}
"""


def a_file(folder: Path, text: str) -> Path:
    path = folder / "sim.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_what_is_committed_loads(path: Path) -> None:
    assert len(load_sim_config(path).models) == 2


def test_defaults_are_filled_in_and_read_back_the_same(tmp_path: Path) -> None:
    config = load_sim_config(a_file(tmp_path, GOOD))
    assert config.normal is not None
    assert (config.normal.rho, config.normal.window) == (0.7, HourWindow.PEAK)
    assert config.approach is ApproachName.NO_SHADOW
    document, problems = read_yaml(sim_yaml(config))
    assert not problems
    assert type(config).model_validate(document) == config


def test_one_value_is_changed_from_outside(tmp_path: Path) -> None:
    path = a_file(tmp_path, GOOD)
    config = load_sim_config(path, ["normal.rho=0.5", "models.Qwen2.5-7B.colocated=3"])
    assert config.normal is not None
    assert config.normal.rho == 0.5
    assert config.models["Qwen2.5-7B"].colocated == 3


def test_files_are_relative_to_the_configuration(tmp_path: Path) -> None:
    text = GOOD + "normal: {traffic: {kind: trace, path: ../a.csv, format: azure}}\n"
    config = load_sim_config(a_file(tmp_path, text))
    assert config.normal is not None
    assert config.normal.traffic.model_dump()["path"] == str(tmp_path.parent / "a.csv")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("rho: 3", "rho: unknown key; known keys are"),
        ("normal: {rho: 3}", "normal.rho: must be less than or equal to 2, got 3"),
        ("normal: {window: noon}", "normal.window: must be 'peak', 'median' or 'trough'"),
        ("approach: magic", "approach: must be 'no-shadow', 'host-tier'"),
        ("shadow: {beta: 0}", "shadow.beta: must be greater than 0, got 0"),
        ("max_batch_tokens: 64", "max_batch_tokens: must be at least max_sequences (256), got 64"),
    ],
)
def test_a_wrong_value_is_named_with_its_limit(tmp_path: Path, change: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_sim_config(a_file(tmp_path, f"{GOOD}{change}\n"))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("Qwen2.5-7B", "Qwen9", "models.Qwen9: has no architecture here; known are ["),
        (
            "{colocated: 2}",
            "{prefill: 1}",
            "models.Qwen2.5-7B: must have colocated instances, or prefill and decode ones; got "
            "colocated 0, prefill 1, decode 0",
        ),
        (
            "FusionBench",
            "Fusion",
            "sessions.workload.benchmark: must be one of ['FusionBench', ",
        ),
        (
            "{kind: drawn, benchmark: FusionBench, per_s: 0.1}",
            "{kind: recorded, path: x.jsonl}",
            "sessions.router.switch_probability: is missing: recorded sessions have no published "
            "rate",
        ),
        (
            "per_s: 0.1}\n",
            "per_s: 0.1}\n  router: {kind: fixed, model: GPT}\n",
            "sessions.router.model: must be one of ['Llama-3.1-8B', 'Qwen2.5-7B'], got 'GPT'",
        ),
        (
            "  Llama-3.1-8B: {prefill: 1, decode: 1}\n",
            "",
            "sessions: are routed between 2 to 5 models, got 1",
        ),
    ],
)
def test_what_does_not_fit_together_is_named(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_sim_config(a_file(tmp_path, GOOD.replace(before, after)))
    assert message in str(caught.value)


def test_all_mistakes_are_shown_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("Qwen2.5-7B", "Qwen9").replace("FusionBench", "Fusion")
    with pytest.raises(ConfigError) as caught:
        load_sim_config(a_file(tmp_path, text))
    assert len(caught.value.problems) == 2
    with pytest.raises(ConfigError, match="nothing would be sent"):
        load_sim_config(a_file(tmp_path, "models: {Qwen2.5-7B: {colocated: 1}}\nnormal: null\n"))
