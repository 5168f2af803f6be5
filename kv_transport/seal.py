"""What a prefill instance says of its own hand-off, so that a decode instance can tell it from any
other: one that was altered, made up, or is of another prompt.

The seal is a keyed digest of the fields that name memory or a peer. The key is the secret that the
engines of a cluster share. Without one the seal still shows mistakes, and who reaches an engine
without a secret is trusted. Used by the plug-in of both ends; everyone else relays the dict.

Hosts: engine.scheduler (seals), engine.hand_offs (checks)."""

from __future__ import annotations

import hashlib
import hmac
from array import array
from typing import TYPE_CHECKING, Any

import msgspec

from kv_transport.errors import HandOffForeign, KvParamsInvalid

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SEAL_KEY = "shadowprefill_seal"
SEALED = (
    "remote_engine_id",
    "remote_request_id",
    "remote_block_ids",
    "remote_host",
    "remote_port",
    "remote_num_tokens",
    "remote_blocks_expiry_time",
    "tp_size",
    "dcp_size",
    "pp_size",
)
"""What names memory, its age or a peer. vLLM adds a count after the seal, which moves nothing."""
_DIGEST_BYTES = 16


class Seal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prompt: str
    """Digest of what the KV is of; empty where the two ends see prompts of different lengths."""
    digest: str


def prompt_digest(token_ids: Sequence[int], others: Iterable[str] = ()) -> str:
    """`others`: what else decides what the KV of these tokens holds, such as an adapter."""
    digest = hashlib.blake2b(array("q", token_ids).tobytes(), digest_size=_DIGEST_BYTES)
    for other in others:
        digest.update(b"\0" + other.encode())
    return digest.hexdigest()


def sealed(params: Mapping[str, Any], prompt: str, secret: str) -> dict[str, Any]:
    """The hand-off with its seal."""
    seal = Seal(prompt=prompt, digest=_digest(params, prompt, secret))
    return {**params, SEAL_KEY: msgspec.to_builtins(seal)}


def check_seal(params: Mapping[str, Any], prompt: str, secret: str) -> None:
    """Raises KvParamsInvalid if it has none, HandOffForeign if it is not for this hand-off and this
    prompt. An empty `prompt` is one that cannot be compared."""
    try:
        seal = msgspec.convert(params.get(SEAL_KEY), Seal)
    except msgspec.ValidationError as error:
        raise KvParamsInvalid(f"kv_transfer_params.{SEAL_KEY}: {error}") from None
    known, given = _digest(params, seal.prompt, secret), seal.digest
    if not hmac.compare_digest(known.encode(), given.encode(errors="surrogatepass")):
        raise HandOffForeign(
            f"kv_transfer_params.{SEAL_KEY} is not that of these fields: no engine that shares "
            "this one's secret made them"
        )
    if prompt and seal.prompt and seal.prompt != prompt:
        raise HandOffForeign(f"kv_transfer_params.{SEAL_KEY} is of another prompt")


def _digest(params: Mapping[str, Any], prompt: str, secret: str) -> str:
    message = msgspec.json.encode([[params.get(name) for name in SEALED], prompt])
    # blake2b takes no key of any length.
    key = hashlib.blake2b(secret.encode(), digest_size=_DIGEST_BYTES).digest()
    return hashlib.blake2b(message, digest_size=_DIGEST_BYTES, key=key).hexdigest()
