"""What a control request may say, and what it answers; without vLLM."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from engine.control import (
    CONTROL_KEY,
    ControlRefused,
    applied_text,
    changed_params,
    control_xargs,
    differences,
    is_control,
    with_changes,
)
from engine.marks import SECRET_KEY
from policy.vocabulary import Controller, Role
from tests.engine.params_of import params


def test_a_control_request_changes_what_it_names_and_nothing_else() -> None:
    before = params()
    changes = {"controller": "off", "beta": 0.25, "kv_cap_share": 0.1, "trace_path": "/t/a.jsonl"}
    after = changed_params(before, control_xargs("test", changes))
    assert after.controller is Controller.OFF
    assert differences(after, before) == changes
    assert (
        msgspec.structs.replace(after, **{name: getattr(before, name) for name in changes})
        == before
    )


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"beta": 3}, "beta must be `float` <= 1.0, got 3"),
        ({"beta": "0.1"}, "beta must be `float`, got '0.1'"),
        ({"delta": True}, "delta must be `float`, got True"),
        ({"margin": 1.0}, "margin must be `float` < 1.0, got 1.0"),
        ({"n_min_tokens": 1.5}, "n_min_tokens must be an integer >= 1 or 'auto', got 1.5"),
        ({"iteration_cap_s": None}, "iteration_cap_s must be `float`, got None"),
        ({"kv_cap_share": 0}, "kv_cap_share must be `float` > 0.0, got 0"),
        ({"idle_age_s": -1}, "idle_age_s must be `float` >= 0.0, got -1"),
        ({"n_min_tokens": 100}, r"max_chunk_tokens must be >= n_min_tokens \(100\).*got 64"),
        ({"controller": "fast"}, r"controller must be one of \['off', .*\], got 'fast'"),
        ({"trace_path": "a.jsonl"}, "trace_path must be an absolute path .* got 'a.jsonl'"),
        ({"trace_path": "/etc/cron.d/a"}, "trace_path must be .* ends in .jsonl"),
        ({"trace_path": "/tmp/a\0.jsonl"}, "trace_path must be .* ends in .jsonl"),
        ({"iteration_cap_s": 1e308}, "iteration_cap_s must be `float` <= 3600.0, got 1e"),
        ({"beta": 0.5, "role": "decode"}, r"\['role'\] cannot be changed; what can is"),
        ({"secret": "mine"}, r"\['secret'\] cannot be changed"),
    ],
)
def test_a_bad_field_is_named_with_its_value_and_limit(
    changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ControlRefused, match=complaint):
        with_changes(params(), changes)


def test_a_prefill_instance_keeps_a_cap() -> None:
    with pytest.raises(ControlRefused, match=r"iteration_cap_s must be > 0 on a prefill instance"):
        with_changes(params(role=Role.PREFILL), {"iteration_cap_s": 0.0})


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (7, "must be JSON in a string, got 7"),
        ("{", "shadowprefill_control: "),
        ("[1]", "shadowprefill_control: "),
        ('{"beta": 0.1}', "version must be 1, got None"),
        ('{"version": true, "beta": 0.1}', "version must be 1, got True"),
        ('{"version": 2, "beta": 0.1}', "version must be 1, got 2"),
        ('{"beta": ' + "[" * 100_000, "recursion depth"),
    ],
    ids=["number", "no_json", "list", "no_version", "bool_version", "other_version", "too_deep"],
)
def test_a_message_that_is_none_of_ours_is_refused(message: object, complaint: str) -> None:
    with pytest.raises(ControlRefused, match=complaint):
        changed_params(params(), {CONTROL_KEY: message})


def test_an_engine_with_a_secret_obeys_nobody_else() -> None:
    ours = params(secret="ours", secret_in_environment=True)
    changed = changed_params(ours, control_xargs("test", {"beta": 0.1}, "ours"))
    assert (changed.beta, changed.secret) == (0.1, "ours")
    for theirs in ("", "theirs", "caf\u00e9"):
        xargs = control_xargs("test", {"beta": 0.1}, theirs)
        with pytest.raises(ControlRefused, match=f"{SECRET_KEY} does not match"):
            changed_params(ours, xargs)


@pytest.mark.parametrize("meant", ["other", "", None])
def test_an_engine_takes_no_change_that_is_meant_for_another_one(meant: Any) -> None:
    with pytest.raises(ControlRefused, match=f"is instance 'test', the change is for {meant!r}"):
        changed_params(params(), control_xargs(meant, {"beta": 0.1}))


def test_an_ordinary_request_is_no_control_request() -> None:
    assert not is_control(None)
    assert not is_control({SECRET_KEY: "ours"})
    assert is_control(control_xargs("test", {}))


def test_a_decode_instance_says_what_is_without_effect_there() -> None:
    before = params(role=Role.DECODE)
    after = with_changes(before, {"controller": "off", "beta": 0.2, "trace_path": "/t/a.jsonl"})
    assert applied_text(after, before) == (
        "control_applied: without effect on a decode instance: beta"
    )
    assert applied_text(with_changes(before, {"controller": "off"}), before) == "control_applied"
