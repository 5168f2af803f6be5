"""Which hand-offs are an engine's own words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kv_transport.errors import HandOffForeign, KvParamsInvalid
from kv_transport.seal import SEAL_KEY, SEALED, check_seal, prompt_digest, sealed

PROMPT = prompt_digest([1, 2, 3])


def a_hand_off(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "do_remote_prefill": True,
        "remote_engine_id": "engine-1",
        "remote_request_id": "cmpl-1",
        "remote_block_ids": ([1, 2], []),
        "remote_host": "10.0.0.1",
        "remote_port": 5600,
        "remote_num_tokens": 3,
        "remote_blocks_expiry_time": 123.25,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
    }
    return fields | changes


def relayed(params: dict[str, Any]) -> dict[str, Any]:
    """As it arrives: two answers in JSON later."""
    answer: dict[str, Any] = json.loads(json.dumps(params))
    return answer


def test_a_hand_off_that_was_relayed_is_taken() -> None:
    check_seal(relayed(sealed(a_hand_off(), PROMPT, "secret")), PROMPT, "secret")


def test_what_vllm_adds_after_the_seal_or_marks_does_not_matter() -> None:
    params = sealed(a_hand_off(), PROMPT, "secret")
    added = {"remote_prefill_cached_tokens": 2, "do_remote_prefill": False}
    check_seal(relayed(params | added), PROMPT, "secret")


CHANGES: dict[str, Any] = {
    "remote_engine_id": "engine-2",
    "remote_request_id": "cmpl-2",
    "remote_block_ids": [[2, 1], []],
    "remote_host": "10.0.0.2",
    "remote_port": 5601,
    "remote_num_tokens": 4,
    "remote_blocks_expiry_time": 124.0,
    "tp_size": 2,
    "dcp_size": 2,
    "pp_size": 2,
}


@pytest.mark.parametrize("name", SEALED)
def test_no_field_that_names_memory_or_a_peer_can_be_changed(name: str) -> None:
    params = relayed(sealed(a_hand_off(), PROMPT, "secret"))
    with pytest.raises(HandOffForeign, match="not that of these fields"):
        check_seal(params | {name: CHANGES[name]}, PROMPT, "secret")
    with pytest.raises(HandOffForeign):
        check_seal({key: params[key] for key in params if key != name}, PROMPT, "secret")


@pytest.mark.parametrize("secret", ["", "another"])
def test_a_seal_of_another_secret_is_foreign(secret: str) -> None:
    params = sealed(a_hand_off(), PROMPT, secret)
    with pytest.raises(HandOffForeign):
        check_seal(params, PROMPT, "secret")


def test_a_seal_of_another_prompt_is_foreign_and_cannot_be_given_this_one() -> None:
    params = sealed(a_hand_off(), PROMPT, "secret")
    other = prompt_digest([1, 2, 4])
    with pytest.raises(HandOffForeign, match="of another prompt"):
        check_seal(params, other, "secret")
    forged = params | {SEAL_KEY: params[SEAL_KEY] | {"prompt": other}}
    with pytest.raises(HandOffForeign, match="not that of these fields"):
        check_seal(forged, other, "secret")


def test_prompts_that_the_two_ends_see_differently_are_not_compared() -> None:
    check_seal(sealed(a_hand_off(), "", "secret"), PROMPT, "secret")
    check_seal(sealed(a_hand_off(), PROMPT, "secret"), "", "secret")


@pytest.mark.parametrize(
    "seal",
    [None, 7, "x", [], {}, {"prompt": "", "digest": 7}, {"prompt": "", "digest": "é", "more": 1}],
)
def test_what_is_no_seal_is_refused_by_name(seal: Any) -> None:
    with pytest.raises(KvParamsInvalid, match=SEAL_KEY):
        check_seal(a_hand_off() | {SEAL_KEY: seal}, PROMPT, "secret")


@pytest.mark.parametrize("digest", ["", "é", "\ud800", "0" * 32])
def test_a_digest_of_any_text_is_only_foreign(digest: str) -> None:
    seal = {"prompt": PROMPT, "digest": digest}
    with pytest.raises(HandOffForeign):
        check_seal(a_hand_off() | {SEAL_KEY: seal}, PROMPT, "secret")


def test_prompts_differ_by_tokens_order_and_whatever_else_decides_their_kv() -> None:
    digests = {
        prompt_digest([1, 2]),
        prompt_digest([2, 1]),
        prompt_digest([1, 2, 0]),
        prompt_digest([1, 2], ["adapter"]),
        prompt_digest([1, 2], ["ada", "pter"]),
        prompt_digest([]),
    }
    assert len(digests) == 6
    assert prompt_digest((1, 2)) == prompt_digest([1, 2])
