"""vLLM's `kv_transfer_params`, typed at one border: everyone else holds a `RemoteKv`.

The dict that P answers is relayed to D untouched (13 fields today, 14 protocol versions so far): we
read only what decides whether it is a hand-off at all. A hand-off is consumed once; it names pinned
blocks of one request on one engine, so using it twice would pull blocks that P has since given to
someone else."""

from __future__ import annotations

from typing import Any

from kv_transport.errors import KvParamsInvalid

PREFILL_LEG_KV_PARAMS: dict[str, Any] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What a P leg sends to ask for its KV to be kept until D has read it."""


class RemoteKv:
    """One hand-off from P; `take()` gives vLLM's own dict exactly once."""

    __slots__ = ("_params", "is_taken")

    def __init__(self, params: dict[str, Any]) -> None:
        self._params = params
        self.is_taken = False

    def take(self) -> dict[str, Any]:
        """The dict to relay to D. A second call is a bug of ours."""
        assert not self.is_taken, "a hand-off is consumed once"
        self.is_taken = True
        return self._params

    def put_back(self) -> None:
        """It was not sent: no D has seen it."""
        self.is_taken = False


def remote_kv_of(answer: Any) -> RemoteKv:
    """The hand-off in a P leg's `kv_transfer_params`; raises KvParamsInvalid."""
    if not isinstance(answer, dict):
        raise KvParamsInvalid(f"kv_transfer_params must be an object, got {type(answer).__name__}")
    if answer.get("do_remote_prefill") is not True:
        raise KvParamsInvalid(
            "kv_transfer_params.do_remote_prefill must be true in a prefill answer, "
            f"got {answer.get('do_remote_prefill')!r}; "
            "is --kv-transfer-config set on that instance?"
        )
    missing = [
        key for key in ("remote_engine_id", "remote_host", "remote_port") if not answer.get(key)
    ]
    if missing:
        raise KvParamsInvalid(f"kv_transfer_params lacks {missing}")
    return RemoteKv(answer)


_NEEDED = (
    "remote_engine_id",
    "remote_request_id",
    "remote_host",
    "remote_port",
    # Without it nobody can say whether the blocks are still those of the prompt.
    "remote_blocks_expiry_time",
)


def wants_pull(params: dict[str, Any] | None) -> bool:
    """Whether a request on a decode instance asks for KV from elsewhere."""
    return params is not None and bool(params.get("do_remote_prefill"))


def peer_of(params: dict[str, Any] | None) -> str:
    """Who would send the blocks of a hand-off: its address, which outlives a restart."""
    given = params or {}
    host, port = given.get("remote_host"), given.get("remote_port")
    return f"{host}:{port}" if host and port else ""


def check_pullable(params: dict[str, Any] | None, prompt_tokens: int | None) -> None:
    """Whether a decode instance may give this hand-off to its connector; raises KvParamsInvalid.

    vLLM matches blocks from the end, so KV of another prompt length would be pulled into the wrong
    places without an error. `prompt_tokens` None: the lengths differ by design (hybrid models)."""
    given = params or {}
    missing = [key for key in _NEEDED if not given.get(key)]
    blocks = given.get("remote_block_ids")
    if not (isinstance(blocks, list | tuple) and any(blocks)):
        missing.append("remote_block_ids")
    if missing:
        raise KvParamsInvalid(f"kv_transfer_params lacks {missing}")
    remote_tokens = given.get("remote_num_tokens")
    if prompt_tokens is not None and remote_tokens not in (None, prompt_tokens):
        raise KvParamsInvalid(
            f"kv_transfer_params.remote_num_tokens must be {prompt_tokens}, the length of the "
            f"prompt, got {remote_tokens!r}"
        )
