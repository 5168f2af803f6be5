"""The P leg and the D leg of a call, each mended while nobody has seen a byte of it.

A P that fails: another P of the model, else D computes the prompt. A D that fails: another D, which
computes it too, because a hand-off is consumed once; it gets the hand-off if the first D was sent
nothing. An instance whose idle connection went stale is asked once more itself. What a client that
leaves in between would leave pinned is for coordinator.orphans. Host: coordinator.pd_flow."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from coordinator.errors import (
    AnswerTimeout,
    AnswerUnfinished,
    ConnectFailed,
    ConnectionStale,
    NodeUnavailable,
    NoInstance,
)
from coordinator.instances import Pair
from coordinator.leg_bodies import engine_body, prefill_body
from coordinator.metrics import Leg
from coordinator.wire import Sending
from engine.marks import Marks
from policy.retry_budget import RetryBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from coordinator.call_body import ClientBody
    from coordinator.call_book import CallBook
    from coordinator.calls import CallContext
    from coordinator.instances import Instance
    from coordinator.metrics import Metrics
    from coordinator.node_client import EngineAnswer, Handoff, NodeClient
    from coordinator.node_state import Cluster
    from coordinator.orphans import Orphans
    from coordinator.sessions import Session

MOST_FAILURES: Final = 2
"""Legs of one call that may fail after they were sent: a call that brings engines down must not be
carried through all of them. A refused connection costs nothing and does not count."""


class Job(NamedTuple):
    """A call that runs."""

    session: Session
    call: CallContext
    body: ClientBody


@dataclass(frozen=True, slots=True, kw_only=True)
class Legs:
    cluster: Cluster
    client: NodeClient
    orphans: Orphans
    book: CallBook
    metrics: Metrics
    secret: str
    clock: Callable[[], float]
    budget: RetryBudget = field(default_factory=RetryBudget)
    _request_ids: Iterator[str] = field(init=False, default_factory=lambda: _request_ids())

    async def prefill(self, job: Job) -> tuple[Pair, Handoff | None]:
        """Places the call and runs its P leg. No hand-off: the pair's D computes the prompt.
        Raises NoInstance, EngineRejected."""
        self.budget.call_came()
        pair = self._place(job)
        alone = Pair(pair.decode, pair.decode)
        if job.body.needs_one_engine and not pair.colocated:
            self.metrics.needed_one_engine(job.call.model, job.call.kind)
            pair = alone
        tried: list[str] = []
        failures = 0
        while not pair.colocated:
            try:
                handoff = await self._prefill_twice(pair, job)
            except NodeUnavailable as error:
                counts = self._failed(pair.prefill, Leg.PREFILL, error)
                failures += counts
            else:
                self.book.placed(job.session, job.call, pair)
                return pair, handoff
            tried.append(pair.prefill.name)
            is_allowed = failures < MOST_FAILURES and self._may_retry(Leg.PREFILL, counts)
            again = self._place_again(job, tried) if is_allowed else None
            pair = alone if again is None or again.colocated else Pair(again.prefill, pair.decode)
            self.metrics.leg_retried(Leg.PREFILL)
        self.book.placed(job.session, job.call, pair)
        return pair, None

    async def decode(self, job: Job, pair: Pair, handoff: Handoff | None) -> EngineAnswer:
        """The D leg: an answer that has begun. Raises NodeUnavailable, EngineRejected,
        AnswerUnfinished. The caller gives it to `release`."""
        decode = pair.decode
        tried: list[str] = []
        failures = 0
        while True:
            try:
                return await self._decode_twice(decode, job, handoff)
            except AnswerUnfinished as error:
                self.metrics.leg_failed(decode.name, Leg.DECODE, error)
                self.cluster.timed_out(decode, str(error))
                raise
            except NodeUnavailable as error:
                counts = self._failed(decode, Leg.DECODE, error)
                failures += counts
                if handoff is not None and counts:
                    self.cluster.not_pulled(pair.prefill.name, decode)
                tried.append(decode.name)
                again = self._place_again(job, tried)
                is_allowed = failures < MOST_FAILURES and self._may_retry(Leg.DECODE, counts)
                if again is None or not is_allowed:
                    raise
            decode = again.decode
            handoff = None if handoff is None or handoff.remote_kv.is_taken else handoff
            prefill = decode if handoff is None else pair.prefill
            self.book.placed(job.session, job.call, Pair(prefill, decode))
            self.metrics.leg_retried(Leg.DECODE)

    def release(self, answer: EngineAnswer) -> None:
        """Over, or cancelled if it is not at its end."""
        answer.instance.inflight_calls -= 1
        answer.release()

    async def _prefill_twice(self, pair: Pair, job: Job) -> Handoff:
        try:
            return await self._prefill_on(pair, job, Sending())
        except ConnectionStale as error:
            self.metrics.leg_failed(pair.prefill.name, Leg.PREFILL, error)
            return await self._prefill_on(pair, job, Sending(fresh=True))

    async def _decode_twice(
        self, decode: Instance, job: Job, handoff: Handoff | None
    ) -> EngineAnswer:
        try:
            return await self._decode_on(decode, job, handoff, Sending())
        except ConnectionStale as error:
            self.metrics.leg_failed(decode.name, Leg.DECODE, error)
            return await self._decode_on(decode, job, None, Sending(fresh=True))

    async def _prefill_on(self, pair: Pair, job: Job, sending: Sending) -> Handoff:
        call, prefill = job.call, pair.prefill
        # P may not spend what D will need after it.
        xargs = self._xargs(job, pair.decode.handoff_s)
        request_id = next(self._request_ids)
        if call.kind.names_in_head:
            sending.request_id = request_id
        body = prefill_body(job.body, call.model, job.session.cache_salt, xargs, request_id)
        uncached_tokens = _uncached(call)
        prefill.inflight_tokens += uncached_tokens
        prefill.inflight_calls += 1
        asked_s = self.clock()
        try:
            with call.trace.step("prefill leg", prefill.name) as step:
                sending.traceparent = step.traceparent
                handoff = await self.client.prefill(prefill, call.kind.path, body, sending)
                step.set("cached_tokens", handoff.cached_tokens)
        except asyncio.CancelledError:
            if sending.connection is not None:
                engine_id = call.kind.engine_id(request_id)
                self.orphans.end_prefill(prefill, pair.decode, engine_id, sending.connection)
            raise
        finally:
            prefill.inflight_tokens -= uncached_tokens
            prefill.inflight_calls -= 1
        self.cluster.served(prefill)
        call.record.p_leg_ms = round(1e3 * (self.clock() - asked_s), 3)
        call.record.p_queue_ms = handoff.queue_ms
        return handoff

    async def _decode_on(
        self, decode: Instance, job: Job, handoff: Handoff | None, sending: Sending
    ) -> EngineAnswer:
        call = job.call
        kv = None if handoff is None else handoff.remote_kv.take()
        body = engine_body(job.body, call.model, job.session.cache_salt, self._xargs(job), kv)
        uncached_tokens = 0 if handoff is not None else _uncached(call)
        decode.inflight_tokens += uncached_tokens
        decode.inflight_calls += 1
        asked_s = self.clock()
        try:
            with call.trace.step("decode leg", decode.name) as step:
                sending.traceparent = step.traceparent
                answer = await self._ask(decode, call, body, sending)
        except BaseException as error:
            decode.inflight_calls -= 1
            self._unanswered(decode, handoff, sending, error)
            raise
        finally:
            decode.inflight_tokens -= uncached_tokens
        self.cluster.served(decode)
        if call.stream:
            call.record.d_leg_ms = round(1e3 * (self.clock() - asked_s), 3)
        if handoff is not None and call.stream and not call.kind.begins_at_once:
            took_s = self.clock() - asked_s
            decode.saw_handoff(took_s)
            self.cluster.pulled(call.record.p_instance or "", decode, took_s)
        return answer

    async def _ask(
        self, decode: Instance, call: CallContext, body: bytes, sending: Sending
    ) -> EngineAnswer:
        if call.stream:
            return await self.client.begin(decode, call.kind.path, body, sending)
        spent_s = self.clock() - call.started_s
        return await self.client.whole(decode, call.kind.path, body, sending, spent_s)

    def _unanswered(
        self, decode: Instance, handoff: Handoff | None, sending: Sending, error: BaseException
    ) -> None:
        """What becomes of a D leg's hand-off and connection when no answer came of it."""
        has_left = isinstance(error, asyncio.CancelledError)
        if handoff is not None and not sending.began:
            handoff.remote_kv.put_back()
            if has_left:
                self.orphans.give_back(decode, handoff.remote_kv)
        elif sending.connection is not None:
            if handoff is None:
                sending.connection.release()
            else:
                self.orphans.end_decode(sending.connection)

    def _place(self, job: Job) -> Pair:
        call = job.call
        with call.trace.step("place"):
            pair = self.cluster.placement.place_call(
                job.session, call.model, call.prompt_tokens_estimate
            )
        self.metrics.placed(call.model, Leg.PREFILL, pair.prefill_reason)
        self.metrics.placed(call.model, Leg.DECODE, pair.decode_reason)
        self.book.placed(job.session, call, pair)
        self.cluster.placed(pair)
        return pair

    def _place_again(self, job: Job, tried: list[str]) -> Pair | None:
        call = job.call
        try:
            return self.cluster.placement.place(
                job.session, call.model, call.prompt_tokens_estimate, tried
            )
        except NoInstance:
            return None

    def _may_retry(self, leg: Leg, counts: bool) -> bool:
        """A refused connection costs nobody anything; other attempts are budgeted."""
        if not counts or self.budget.take():
            return True
        self.metrics.retry_refused(leg)
        return False

    def _failed(self, instance: Instance, leg: Leg, error: NodeUnavailable) -> bool:
        """Remembers it; says whether it counts as one of the call's failures."""
        self.metrics.leg_failed(instance.name, leg, error)
        if isinstance(error, ConnectFailed):
            self.cluster.refused(instance, str(error))
            return False
        if isinstance(error, AnswerTimeout):
            self.cluster.timed_out(instance, str(error))
        else:
            self.cluster.failed(instance, str(error))
        return True

    def _xargs(self, job: Job, later_s: float = 0.0) -> dict[str, str | float]:
        """`later_s`: of the TTFT, what has to follow this leg."""
        call, slo = job.call, job.call.slo
        spent_s = self.clock() - call.started_s
        marks = Marks(
            request_class=call.request_class,
            session_id=job.session.mark_id,
            ttft_budget_s=max(0.0, slo.ttft_s - spent_s - later_s),
            tpot_s=slo.tpot_s,
        )
        return marks.to_xargs(self.secret)


def _uncached(call: CallContext) -> int:
    warm_tokens = max(call.own_tokens_before, call.shadow_tokens_before)
    return max(0, call.prompt_tokens_estimate - warm_tokens)


def _request_ids() -> Iterator[str]:
    """Unlike those of every other coordinator."""
    prefix = secrets.token_hex(6)
    return (f"{prefix}-{number}" for number in itertools.count())
