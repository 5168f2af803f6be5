"""Asks a target's own front end which token ids of a history the next real prompt will start with.

The coordinator has no tokenizer and no template: two renders of the same history with different
futures (`coordinator.history`) are compared token by token. Each costs the front end a whole
tokenisation, so a front end has at most one of ours at a time, and both are counted and timed."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec

from coordinator.calls import CallKind
from coordinator.engine_post import ShadowFailed, ShadowFailure
from coordinator.futures import future_bodies
from policy.segments import common_prefix_length

if TYPE_CHECKING:
    from coordinator.engine_post import EnginePost
    from coordinator.history import History
    from coordinator.instances import Instance
    from coordinator.shadow_counters import ShadowCounters


class _Rendered(msgspec.Struct):
    """vLLM's GenerateRequest, as far as we read it."""

    token_ids: list[int]
    features: Any = None


_CHAT = msgspec.json.Decoder(_Rendered)
_TEXT = msgspec.json.Decoder(list[_Rendered])


class Renderer:
    """Stable prefixes, by the front end of an instance."""

    def __init__(self, post: EnginePost, counters: ShadowCounters) -> None:
        self._post = post
        self._counters = counters
        self._front_ends: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def stable_prefix(self, target: Instance, history: History) -> list[int]:
        """Token ids that the next prompt will start with; raises ShadowFailed."""
        *choices, plainest = future_bodies(history, target.model)
        async with self._front_ends[target.url]:
            for pair in choices:
                try:
                    return await self._shared(target, history, pair)
                except ShadowFailed as error:
                    if error.failure is not ShadowFailure.REJECTED:
                        raise
            return await self._shared(target, history, plainest)

    async def _shared(
        self, target: Instance, history: History, pair: tuple[bytes, bytes]
    ) -> list[int]:
        one, other = [await self._render(target, history, body) for body in pair]
        return one[: common_prefix_length(one, other)]

    async def _render(self, target: Instance, history: History, body: bytes) -> list[int]:
        started_s = time.monotonic()
        try:
            answer = await self._post(target, f"{history.kind.path}/render", body)
        finally:
            self._counters.renders += 1
            self._counters.render_s += time.monotonic() - started_s
        rendered = _read(target, history, answer)
        if rendered.features is not None:
            text = f"{target.name}: the prompt has multimodal features"
            raise ShadowFailed(ShadowFailure.MULTIMODAL, text)
        self._counters.rendered_tokens += len(rendered.token_ids)
        return rendered.token_ids


def _read(target: Instance, history: History, answer: bytes) -> _Rendered:
    try:
        if history.kind is not CallKind.TEXT:
            return _CHAT.decode(answer)
        (rendered,) = _TEXT.decode(answer)
    except (msgspec.MsgspecError, ValueError) as error:
        text = f"{target.name}: unreadable render: {error}"
        raise ShadowFailed(ShadowFailure.UNREADABLE, text) from None
    return rendered
