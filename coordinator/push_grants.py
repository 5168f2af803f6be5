"""A decode instance's slot for one push: taken here among our own jobs, granted by D itself.

Without a grant P computes the segment as ever and keeps it in its evictable class; D is asked again
later, and P's leg for a prefix that it still holds costs next to nothing then.

Host: coordinator.shadow_work."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coordinator.engine_post import ShadowFailed
from coordinator.shadow_legs import DecodeSlots, ask
from engine.push_ask import PushAsk
from policy.link_gate import GateReason
from policy.segments import aligned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coordinator.engine_post import EnginePost
    from coordinator.instances import Pair
    from coordinator.shadow_counters import ShadowCounters
    from coordinator.shadow_job import ShadowJob, Step
    from coordinator.shadow_legs import Segment

SLOT_WAIT_S = 0.05
"""How long a segment waits for its D; after that P computes it, and the hand-off follows later."""
RETRY_S = (0.1, 0.2, 0.5, 1.0)
"""Between two asks for a push that is only for D; the last one again and again."""
_LATER = frozenset(
    {
        GateReason.NO_FREE_KV,
        GateReason.NORMAL_TRANSFER_IN,
        GateReason.NORMAL_TRANSFER_OUT,
        GateReason.REQUESTS_WAITING,
        GateReason.NO_SLOT,
        GateReason.PUSH_OUTSTANDING,
        GateReason.QUARANTINED,
    }
)
"""What passes by itself; any other refusal is for as long as the history stays the same."""


@dataclass(frozen=True, slots=True)
class Granted:
    """Held until it is given back, or used: then D itself counts the push."""

    end: int
    """Of the job's tokens: how far P may hand over."""


class PushGrants:
    """Of one coordinator."""

    def __init__(
        self,
        post: EnginePost,
        counters: ShadowCounters,
        peers: Mapping[str, str],
        timeout_s: float,
    ) -> None:
        """`peers`: by instance, the address that its hand-offs name. `timeout_s`: for a push that
        is only for D."""
        self._post = post
        self._counters = counters
        self._peers = peers
        self._timeout_s = timeout_s
        self._slots = DecodeSlots()

    async def get(self, job: ShadowJob, pair: Pair, step: Step, segment: Segment) -> Granted | None:
        """For a segment that is computed, at once or not at all; one that is only for D waits."""
        if not step.is_push:
            return await self._try(job, pair, step, segment, SLOT_WAIT_S)
        loop, version = asyncio.get_running_loop(), job.version
        until_s = loop.time() + self._timeout_s
        waits = iter(RETRY_S)
        while (left_s := until_s - loop.time()) > 0:
            granted = await self._try(job, pair, step, segment, left_s)
            if granted is not None or job.push_failed or job.version != version:
                return granted
            if job.pushed >= step.end:
                return None
            await asyncio.sleep(next(waits, RETRY_S[-1]))
        job.push_failed = True
        return None

    def used(self, pair: Pair) -> None:
        """The push has ended; or nothing was handed over, and D was told."""
        self._slots.give_back(pair.decode)

    async def give_back(self, pair: Pair, segment: Segment) -> None:
        """It is not wanted any more: others may have it at once."""
        try:
            await ask(self._post, pair.decode, segment, self._ask(pair, gives_back=True))
        except ShadowFailed:
            pass  # it expires
        finally:
            self.used(pair)

    async def _try(
        self, job: ShadowJob, pair: Pair, step: Step, segment: Segment, wait_s: float
    ) -> Granted | None:
        if not await self._slots.take(pair.decode, wait_s):
            self._counters.slot_busy += 1
            return None
        granted = None
        try:
            granted = await self._ask_for(job, pair, step, segment)
        finally:
            if granted is None:
                self._slots.give_back(pair.decode)
        return granted

    async def _ask_for(
        self, job: ShadowJob, pair: Pair, step: Step, segment: Segment
    ) -> Granted | None:
        version = job.version
        try:
            answer = await ask(self._post, pair.decode, segment, self._ask(pair))
        except ShadowFailed as error:
            self._counters.failed[f"ask_{error.failure}"] += 1
            job.push_failed = job.version == version
            return None
        self._counters.asks[answer.reason] += 1
        if job.version != version:
            # For another history: the next ask of this session takes the grant over.
            return None
        if answer.reason == GateReason.NOTHING_MISSING:
            job.found_on_decode(step.end)
            return None
        if not answer.tokens:
            job.push_failed = answer.reason not in _LATER
            return None
        job.found_on_decode(answer.held_tokens)
        end = aligned(min(step.end, answer.held_tokens + answer.tokens), job.limits.block_size)
        # What P computes now is handed over whole, or later in pieces.
        return Granted(end) if step.is_push or end == step.end else None

    def _ask(self, pair: Pair, *, gives_back: bool = False) -> PushAsk:
        return PushAsk(
            peer=self._peers.get(pair.prefill.name, ""),
            normal_out=pair.prefill.handoffs_out,
            gives_back=gives_back,
        )
