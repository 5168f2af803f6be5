"""The requests that make one segment warm: D grants a push, P computes prompt[:end], D pulls it.

All are ordinary completions of token ids with one output token, marked as shadow. A hand-off is
asked for only with D's grant in hand: P pins the blocks of a finished request until D has read
them, so nothing may be pinned in front of a closed gate. One that could not be sent to D is given
back, or P would keep its blocks for the whole lease."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from coordinator.engine_post import ShadowFailed, ShadowFailure
from coordinator.orphans import NO_MODEL
from engine.push_ask import AnswerUnreadable, ask_xargs, read_answer
from kv_transport.errors import KvParamsInvalid
from kv_transport.kv_params import PREFILL_LEG_KV_PARAMS, RemoteKv, remote_kv_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.engine_post import EnginePost
    from coordinator.instances import Instance
    from engine.push_ask import PushAnswer, PushAsk

_PATH = "/v1/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """prompt[:end] of one job, ready to be sent."""

    model: str
    token_ids: list[int]
    cache_salt: str
    xargs: Mapping[str, str | float]
    traceparent: str = ""


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
    """At most one shadow hand-off outstanding per D, of this coordinator's; D itself sees to it
    among several."""

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


async def ask(
    post: EnginePost, decode: Instance, segment: Segment, question: PushAsk
) -> PushAnswer:
    """What D says to a push of the segment now; raises ShadowFailed."""
    # One token more, whichever: vLLM never takes a prompt's last one from the cache, nor its block.
    token_ids = [*segment.token_ids, 0]
    xargs = {**segment.xargs, **ask_xargs(question)}
    asked = replace(segment, token_ids=token_ids, xargs=xargs)
    end = _choice(decode, await post(decode, _PATH, _body(asked, {})))[1]
    try:
        return read_answer(end.stop_reason)
    except AnswerUnreadable as error:
        raise ShadowFailed(ShadowFailure.UNREADABLE, f"{decode.name}: {error}") from None


async def compute(
    post: EnginePost, prefill: Instance, segment: Segment, *, hand_off: bool
) -> Computed:
    """Makes P hold the segment; raises ShadowFailed."""
    more: dict[str, Any] = {"kv_transfer_params": PREFILL_LEG_KV_PARAMS} if hand_off else {}
    reply = _read(prefill, await post(prefill, _PATH, _body(segment, more), segment.traceparent))
    try:
        remote_kv = remote_kv_of(reply.kv_transfer_params) if hand_off else None
    except KvParamsInvalid as error:
        raise ShadowFailed(ShadowFailure.UNREADABLE, f"{prefill.name}: {error}") from None
    details = reply.usage.prompt_tokens_details if reply.usage else None
    return Computed((details.cached_tokens or 0) if details else 0, remote_kv)


async def pull(post: EnginePost, decode: Instance, segment: Segment, remote_kv: RemoteKv) -> None:
    """Makes D pull what it lacks of the segment; raises ShadowFailed."""
    body = _body(segment, {"kv_transfer_params": remote_kv.take()})
    _read(decode, await post(decode, _PATH, body, segment.traceparent))


async def give_back(post: EnginePost, decode: Instance, remote_kv: RemoteKv) -> None:
    """Of a hand-off that D was not sent: its front end refuses the request, and tells P."""
    body = {"model": NO_MODEL, "prompt": [0], "max_tokens": 1}
    body["kv_transfer_params"] = remote_kv.take()
    with suppress(ShadowFailed):  # the refusal; what fails otherwise is left to the lease
        await post(decode, _PATH, msgspec.json.encode(body))


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


def _choice(instance: Instance, answer: bytes) -> tuple[_Reply, _Choice]:
    """An answer and its one choice; raises ShadowFailed."""
    try:
        reply = _REPLY.decode(answer)
    except msgspec.MsgspecError as error:
        text = f"{instance.name}: unreadable answer to a segment: {error}"
        raise ShadowFailed(ShadowFailure.UNREADABLE, text) from None
    if len(reply.choices) != 1:
        text = f"{instance.name}: an answer to a segment with {len(reply.choices)} choices"
        raise ShadowFailed(ShadowFailure.UNREADABLE, text)
    return reply, reply.choices[0]


def _read(instance: Instance, answer: bytes) -> _Reply:
    reply, end = _choice(instance, answer)
    # A stop token would be a number here, and none of our requests has stop strings.
    if end.finish_reason not in _DONE or isinstance(end.stop_reason, str):
        text = f"{instance.name}: the scheduler ended it: {end.stop_reason or end.finish_reason}"
        raise ShadowFailed(_EARLY_ENDS.get(str(end.stop_reason), ShadowFailure.ENDED_EARLY), text)
    return reply
