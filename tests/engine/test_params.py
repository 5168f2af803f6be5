from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import pytest

from configs.schema import ClusterConfig, StepTimeConfig
from engine.params import SECRET_VARIABLE, EngineParams, EngineParamsInvalid
from policy.vocabulary import Controller, Role

PROFILE_STEP_TIME = StepTimeConfig(
    fixed_s=0.05, s_per_request=0.001, s_per_token=0.0005, s_per_token_context=1e-7
)


def a_cluster(**model: object) -> ClusterConfig:
    return ClusterConfig.model_validate(
        {
            "profile": "cpu",
            "models": {
                "small": {
                    "path": "somewhere",
                    "max_model_len": 4096,
                    "slo": {"ttft_s": 2.0, "tpot_s": 0.25},
                    **model,
                }
            },
            "instances": {
                "small-p": {"model": "small", "role": "prefill", "port": 8101, "kv_port": 8201}
            },
            "shadow": {
                "controller": "harvest",
                "beta": 0.5,
                "delta": 0.1,
                "margin": 0.1,
                "n_min_tokens": 32,
                "iteration_cap_s": 0.5,
                "segment_tokens": 4096,
                "resubmit_tokens": 1024,
                "max_chunk_tokens": 512,
                "kv_cap_share": 0.25,
                "idle_age_s": 5,
                "top_k": 1,
                "min_switch_probability": 0.0,
                "timeout_s": 60,
            },
            "coordinator": {"engine_secret": "ours"},
        }
    )


def an_object() -> dict[str, object]:
    params = EngineParams.from_cluster(a_cluster(), "small-p", PROFILE_STEP_TIME)
    loaded: dict[str, object] = json.loads(params.to_json())
    return loaded


def test_an_engine_is_told_what_the_cluster_configuration_says() -> None:
    params = EngineParams.from_cluster(a_cluster(), "small-p", PROFILE_STEP_TIME)
    assert (params.instance, params.model, params.role) == ("small-p", "small", Role.PREFILL)
    assert (params.slo_ttft_s, params.slo_tpot_s, params.secret) == (2.0, 0.25, "ours")
    assert params.controller is Controller.HARVEST
    assert params.step_time.fixed_s == 0.05
    assert params.pull_timeout_s > 0


def test_an_unmarked_request_has_the_targets_of_normal_traffic() -> None:
    by_class = {
        "normal": {"ttft_s": 9.0, "tpot_s": 0.9},
        "routed": {"ttft_s": 1.0, "tpot_s": 0.1},
    }
    params = EngineParams.from_cluster(
        a_cluster(slo_by_class=by_class), "small-p", PROFILE_STEP_TIME
    )
    assert (params.slo_ttft_s, params.slo_tpot_s) == (9.0, 0.9)


def test_a_models_own_step_time_overrides_the_profile() -> None:
    own = {"fixed_s": 0.2, "s_per_request": 0, "s_per_token": 0.1, "s_per_token_context": 0}
    params = EngineParams.from_cluster(a_cluster(step_time=own), "small-p", PROFILE_STEP_TIME)
    assert params.step_time.fixed_s == 0.2


def test_they_survive_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_VARIABLE, "ours")
    params = EngineParams.from_cluster(a_cluster(), "small-p", PROFILE_STEP_TIME)
    written = json.loads(params.to_json())
    assert written["secret"] == ""
    assert EngineParams.from_additional_config({"shadowprefill": written}) == params


def test_without_a_secret_nobody_looks_for_one() -> None:
    cluster = a_cluster()
    open_to_all = cluster.model_copy(
        update={"coordinator": cluster.coordinator.model_copy(update={"engine_secret": ""})}
    )
    params = EngineParams.from_cluster(open_to_all, "small-p", PROFILE_STEP_TIME)
    assert EngineParams.from_json(params.to_json()) == params
    assert EngineParams.from_additional_config({"shadowprefill": params.to_object()}) == params


@pytest.mark.parametrize("value", [None, ""])
def test_an_engine_that_was_not_given_the_secret_does_not_start(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(SECRET_VARIABLE, value)
    with pytest.raises(EngineParamsInvalid, match=f"{SECRET_VARIABLE} is not set"):
        EngineParams.from_additional_config({"shadowprefill": an_object()})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"version": 2}, r"version must be 1, got 2"),
        ({"beta": 1.5}, r"beta"),
        ({"n_min": 3}, r"unknown field `n_min`"),
        ({"role": "router"}, r"role"),
        ({"pull_timeout_s": 0}, r"pull_timeout_s"),
        ({"step_time": {"fixed_s": 1.0}}, r"step_time"),
    ],
    ids=["other_version", "out_of_range", "unknown_key", "unknown_role", "zero", "incomplete"],
)
def test_what_cannot_be_read_is_refused_with_its_name(
    change: dict[str, object], complaint: str
) -> None:
    with pytest.raises(EngineParamsInvalid, match=complaint):
        EngineParams.from_object(an_object() | change)


@pytest.mark.parametrize("additional", [{}, None, {"other": 1}])
def test_an_engine_without_our_parameters_says_how_to_get_them(additional: object) -> None:
    with pytest.raises(EngineParamsInvalid, match="engine-args"):
        EngineParams.from_additional_config(additional)


def test_text_that_is_not_json_is_refused() -> None:
    with pytest.raises(EngineParamsInvalid, match="not JSON"):
        EngineParams.from_json("{")


def test_parameters_are_frozen() -> None:
    params = msgspec.convert(an_object(), EngineParams)
    with pytest.raises(AttributeError):
        params.beta = 0.9  # type: ignore[misc]  # that it cannot be done is the point


def test_what_the_coordinator_uses_imports_without_an_engine() -> None:
    code = (
        "import sys, engine.params, engine.marks, engine.compat;"
        "print([name for name in ('vllm', 'torch', 'nixl') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(("n_min_tokens", "first"), [(32, 32), ("auto", 16)])
def test_an_instance_that_has_seen_nothing_begins_with_the_smallest_chunk(
    n_min_tokens: int | str, first: int
) -> None:
    params = EngineParams.from_object(an_object() | {"n_min_tokens": n_min_tokens})
    assert params.slack_params().n_min_tokens == n_min_tokens
    assert params.step_time_model().trusted_tokens == first
