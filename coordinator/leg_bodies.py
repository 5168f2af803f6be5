"""What each leg of a call is sent: the client's own fields, byte for byte, plus what is ours.

Every API of vLLM's takes the same three fields of ours (`cache_salt`, `vllm_xargs`,
`kv_transfer_params`) and gives a hand-off back in the same one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from coordinator.calls import CallKind
from kv_transport.kv_params import PREFILL_LEG_KV_PARAMS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.call_body import ClientBody

_encode = msgspec.json.Encoder().encode

_TRUE, _FALSE, _ONE = msgspec.Raw(b"true"), msgspec.Raw(b"false"), msgspec.Raw(b"1")
_USAGE_WANTED: Final = msgspec.Raw(b'{"include_usage":true}')
_PREFILL_KV: Final = msgspec.Raw(_encode(PREFILL_LEG_KV_PARAMS))

_ONLY_FOR_D: Final = (
    "max_completion_tokens",
    "min_tokens",
    "stream_options",
    "enable_response_messages",  # P's answer would repeat the prompt, token by token
)


def engine_body(
    body: ClientBody,
    model: str,
    cache_salt: str,
    xargs: Mapping[str, str | float],
    kv_transfer_params: Mapping[str, Any] | None = None,
) -> bytes:
    """The body of a colocated call or of the D leg."""
    fields: dict[str, Any] = {"model": model, **body.fields}
    if body.stream:
        fields["stream"] = _TRUE
        if not body.usage_wanted:
            fields["stream_options"] = _USAGE_WANTED
    return _with_ours(body.kind, fields, cache_salt, xargs, kv_transfer_params)


def prefill_body(
    body: ClientBody,
    model: str,
    cache_salt: str,
    xargs: Mapping[str, str | float],
    request_id: str,
) -> bytes:
    """The body of the P leg: the same prompt, one token, KV kept for D."""
    fields: dict[str, Any] = {"model": model, **body.fields}
    for name in _ONLY_FOR_D:
        fields.pop(name, None)
    fields[body.kind.limit_field] = _ONE
    fields["stream"] = _FALSE
    if not body.kind.names_in_head:
        fields["request_id"] = request_id
    return _with_ours(body.kind, fields, cache_salt, xargs, _PREFILL_KV)


def _with_ours(
    kind: CallKind,
    fields: dict[str, Any],
    cache_salt: str,
    xargs: Mapping[str, str | float],
    kv_transfer_params: Mapping[str, Any] | msgspec.Raw | None,
) -> bytes:
    fields["cache_salt"] = cache_salt
    fields["vllm_xargs"] = xargs
    if kv_transfer_params is not None:
        fields["kv_transfer_params"] = kv_transfer_params
    if kind is CallKind.RESPONSES:
        # A stored answer would be one engine's, never forgotten, and readable by every tenant.
        fields["store"] = _FALSE
    return _encode(fields)
