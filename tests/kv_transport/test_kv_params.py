from typing import Any

import pytest

from kv_transport.errors import KvParamsInvalid, KvTransportError, LinkError, PeerGone, PullTimeout
from kv_transport.kv_params import PREFILL_LEG_KV_PARAMS, remote_kv_of


def an_answer(**changes: Any) -> dict[str, Any]:
    answer = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": "engine-1",
        "remote_request_id": "cmpl-1",
        "remote_block_ids": [[1, 2]],
        "remote_host": "127.0.0.1",
        "remote_port": 5600,
        "a_field_of_a_later_protocol": [7],
    }
    return answer | changes


def test_a_hand_off_is_relayed_untouched_with_fields_we_do_not_know() -> None:
    answer = an_answer()
    assert remote_kv_of(answer).take() is answer


def test_a_hand_off_is_consumed_once() -> None:
    remote = remote_kv_of(an_answer())
    remote.take()
    with pytest.raises(AssertionError, match="consumed once"):
        remote.take()


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (None, "NoneType"),
        ([1], "list"),
        ({}, "do_remote_prefill"),
        (an_answer(do_remote_prefill=False), "do_remote_prefill"),
        (an_answer(do_remote_prefill="true"), "do_remote_prefill"),
        (an_answer(remote_engine_id=None), "remote_engine_id"),
        (an_answer(remote_host=""), "remote_host"),
        (an_answer(remote_port=None), "remote_port"),
    ],
)
def test_an_answer_that_is_no_hand_off_is_refused_by_name(answer: Any, named: str) -> None:
    with pytest.raises(KvParamsInvalid, match=named):
        remote_kv_of(answer)


def test_the_prefill_leg_asks_p_to_keep_its_kv_and_names_no_remote() -> None:
    assert PREFILL_LEG_KV_PARAMS["do_remote_decode"] is True
    assert PREFILL_LEG_KV_PARAMS["do_remote_prefill"] is False
    assert all(
        value is None for key, value in PREFILL_LEG_KV_PARAMS.items() if key.startswith("remote_")
    )


def test_every_error_of_the_room_has_one_root() -> None:
    for leaf in (KvParamsInvalid, LinkError, PullTimeout, PeerGone):
        assert issubclass(leaf, KvTransportError)
