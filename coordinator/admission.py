"""How many calls run at once and how many wait: per key, and of everybody.

A call beyond a limit waits its turn in a queue of bounded length; one beyond that is told to come
again, with a time. It waits before any session or engine hears of it; its TTFT has begun.
Host: coordinator.openai_api."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

from coordinator.door_errors import RateExceeded, TooManyCalls
from policy.token_bucket import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable

    from configs.schema import CoordinatorConfig, LimitsConfig
    from coordinator.clients import Client

BURST_S: Final = 10.0
"""Of a rate limit: what may come at once, in seconds of the rate."""
MAX_LANES: Final = 10_000
"""Keys remembered; without configured keys every token is one."""


class Lane:
    """Slots of one key, or of everybody, and who waits for one."""

    __slots__ = ("_most", "_queued", "_waiting", "running")

    def __init__(self, most: int | None, queued: int) -> None:
        self._most = most
        self._queued = queued
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.running = 0

    @property
    def is_idle(self) -> bool:
        return not self.running and not self._waiting

    async def enter(self, wait_s: float, what: str) -> None:
        """Raises TooManyCalls."""
        if self._most is None or (self.running < self._most and not self._waiting):
            self.running += 1
            return
        if len(self._waiting) >= self._queued:
            raise TooManyCalls(what, self._most, len(self._waiting))
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(wait_s):
                await turn
        except BaseException as error:
            self._gives_up(turn)
            if isinstance(error, TimeoutError):
                raise TooManyCalls(what, self._most, len(self._waiting), wait_s) from None
            raise

    def leave(self) -> None:
        self.running -= 1
        while self._waiting and (self._most is None or self.running < self._most):
            turn = self._waiting.popleft()
            if not turn.done():
                self.running += 1
                turn.set_result(None)

    def _gives_up(self, turn: asyncio.Future[None]) -> None:
        """Its turn may have come in the same moment: then the slot goes on to the next."""
        if turn.done() and not turn.cancelled():
            self.leave()
            return
        turn.cancel()
        if turn in self._waiting:
            self._waiting.remove(turn)


class Admission:
    """One per application."""

    def __init__(self, config: CoordinatorConfig, clock: Callable[[], float]) -> None:
        self._wait_s = config.queue_wait_s
        self._clock = clock
        self._everybody = Lane(config.max_calls, config.max_queued_calls)
        self._lanes: OrderedDict[str, tuple[Lane, TokenBucket | None]] = OrderedDict()

    async def enter(self, client: Client) -> Lane | None:
        """The client's lane, for `leave`. Raises RateExceeded, TooManyCalls."""
        lane = self._own(client)
        if lane is not None:
            await lane.enter(self._wait_s, f"of key {client.key}")
        try:
            await self._everybody.enter(self._wait_s, "of this coordinator")
        except BaseException:
            if lane is not None:
                lane.leave()
            raise
        return lane

    def leave(self, lane: Lane | None) -> None:
        self._everybody.leave()
        if lane is not None:
            lane.leave()

    def _own(self, client: Client) -> Lane | None:
        """None: the key has no limits."""
        limits = client.limits
        if limits.requests_per_minute is None and limits.concurrent_calls is None:
            return None
        lane, bucket = self._lane(client.key, limits)
        wait_s = 0.0 if bucket is None else bucket.take(self._clock())
        if wait_s:
            assert limits.requests_per_minute is not None
            raise RateExceeded(client.key, limits.requests_per_minute, wait_s)
        return lane

    def _lane(self, key: str, limits: LimitsConfig) -> tuple[Lane, TokenBucket | None]:
        found = self._lanes.get(key)
        if found is None:
            found = self._lanes[key] = (
                Lane(limits.concurrent_calls, limits.queued_calls),
                _bucket(limits.requests_per_minute, self._clock()),
            )
            self._forget_one()
        self._lanes.move_to_end(key)
        return found

    def _forget_one(self) -> None:
        if len(self._lanes) <= MAX_LANES:
            return
        oldest = next((key for key, (lane, _) in self._lanes.items() if lane.is_idle), None)
        if oldest is not None:
            del self._lanes[oldest]


def _bucket(requests_per_minute: float | None, now_s: float) -> TokenBucket | None:
    if requests_per_minute is None:
        return None
    rate_per_s = requests_per_minute / 60
    return TokenBucket(rate_per_s=rate_per_s, capacity=max(1.0, rate_per_s * BURST_S), now_s=now_s)
