"""The two requests that make one segment warm: P computes prompt[:end], then D pulls it.

Both are ordinary completions of token ids with one output token, marked as shadow: an engine
without our scheduler would serve them all the same. A hand-off is asked for only while its D's slot
is held: P pins the blocks of a finished request until D has read them, so nothing may be pinned in
front of a closed gate."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from coordinator.engine_post import ShadowFailed, ShadowFailure
from kv_transport.errors import KvParamsInvalid
from kv_transport.kv_params import PREFILL_LEG_KV_PARAMS, RemoteKv, remote_kv_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.engine_post import EnginePost
    from coordinator.node_state import Instance

_PATH = "/v1/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """prompt[:end] of one job, ready to be sent."""

    model: str
    token_ids: list[int]
    cache_salt: str
    xargs: Mapping[str, str | float]


@dataclass(frozen=True, slots=True)
class Computed:
    """P's answer."""

    cached_tokens: int
    remote_kv: RemoteKv | None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _Details | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    stop_reason: Any = None


class _Reply(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None
    kv_transfer_params: Any = None


_REPLY = msgspec.json.Decoder(_Reply)
_DONE = ("length", "stop")
_EARLY_ENDS = {
    "released_by_routed_call": ShadowFailure.RELEASED,
    "superseded": ShadowFailure.RELEASED,
    "truncated_by_cap": ShadowFailure.TRUNCATED,
}
"""What the `stop_reason` of our scheduler means here; any other is ENDED_EARLY."""


class DecodeSlots:
    """At most one shadow hand-off outstanding per D."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def take(self, decode: Instance, wait_s: float) -> bool:
        """Whether D granted its slot within `wait_s`; then it must be given back."""
        try:
            async with asyncio.timeout(wait_s):
                return await self._locks[decode.name].acquire()
        except TimeoutError:
            return False

    def give_back(self, decode: Instance) -> None:
        self._locks[decode.name].release()


async def compute(
    post: EnginePost, prefill: Instance, segment: Segment, *, hand_off: bool
) -> Computed:
    """Makes P hold the segment; raises ShadowFailed."""
    more: dict[str, Any] = {"kv_transfer_params": PREFILL_LEG_KV_PARAMS} if hand_off else {}
    reply = _read(prefill, await post(prefill, _PATH, _body(segment, more)))
    try:
        remote_kv = remote_kv_of(reply.kv_transfer_params) if hand_off else None
    except KvParamsInvalid as error:
        raise ShadowFailed(ShadowFailure.UNREADABLE, f"{prefill.name}: {error}") from None
    details = reply.usage.prompt_tokens_details if reply.usage else None
    return Computed((details.cached_tokens or 0) if details else 0, remote_kv)


async def pull(post: EnginePost, decode: Instance, segment: Segment, remote_kv: RemoteKv) -> None:
    """Makes D pull what it lacks of the segment; raises ShadowFailed."""
    body = _body(segment, {"kv_transfer_params": remote_kv.take()})
    _read(decode, await post(decode, _PATH, body))


def _body(segment: Segment, more: dict[str, Any]) -> bytes:
    body = {
        "model": segment.model,
        "prompt": segment.token_ids,
        "max_tokens": 1,
        "temperature": 0,
        "cache_salt": segment.cache_salt,
        "vllm_xargs": segment.xargs,
    }
    return msgspec.json.encode(body | more)


def _read(instance: Instance, answer: bytes) -> _Reply:
    try:
        reply = _REPLY.decode(answer)
    except msgspec.MsgspecError as error:
        text = f"{instance.name}: unreadable answer to a segment: {error}"
        raise ShadowFailed(ShadowFailure.UNREADABLE, text) from None
    if len(reply.choices) != 1:
        text = f"{instance.name}: an answer to a segment with {len(reply.choices)} choices"
        raise ShadowFailed(ShadowFailure.UNREADABLE, text)
    end = reply.choices[0]
    # A stop token would be a number here, and none of our requests has stop strings.
    if end.finish_reason not in _DONE or isinstance(end.stop_reason, str):
        text = f"{instance.name}: the scheduler ended it: {end.stop_reason or end.finish_reason}"
        raise ShadowFailed(_EARLY_ENDS.get(str(end.stop_reason), ShadowFailure.ENDED_EARLY), text)
    return reply
