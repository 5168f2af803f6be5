"""Flow 1, a call: READ FIRST.

    session -> model -> P and D -> P leg (one token, KV kept) -> D leg (pulls it) -> bytes out

`serve` is the whole story. What may go wrong before a byte is out is mended in `coordinator.legs`;
after that the client is told inside the stream. Cancelling `serve` (the client went away) closes
the leg that runs, and nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from coordinator.call_body import check_prompt_length
from coordinator.calls import CallKind
from coordinator.errors import EngineRejected
from coordinator.legs import Job
from coordinator.metrics import Outcome
from coordinator.router_port import Choice, SessionView
from coordinator.session_identity import KIND_HEADER, history_digests, named_session, task_kind
from coordinator.sessions import Session
from coordinator.slo import slo_wish

if TYPE_CHECKING:
    from collections.abc import Mapping

    from configs.schema import ModelConfig
    from coordinator.call_body import ClientBody
    from coordinator.call_book import CallBook
    from coordinator.call_log import CallLog
    from coordinator.call_story import CallStory
    from coordinator.calls import ShadowHooks
    from coordinator.clients import Client
    from coordinator.delivery import Delivery, Reply
    from coordinator.legs import Legs
    from coordinator.routers import Routing
    from coordinator.session_store import SessionStore
    from coordinator.usage import Usage

SHADOW_HEADER = b"x-shadowprefill-shadow"


class Request(NamedTuple):
    """What the door hands in: a checked body, not yet placed."""

    body: ClientBody
    headers: Mapping[bytes, bytes]
    arrived_s: float
    client: Client
    story: CallStory


@dataclass(frozen=True, slots=True, kw_only=True)
class PdFlow:
    models: Mapping[str, ModelConfig]
    sessions: SessionStore
    routing: Routing
    legs: Legs
    delivery: Delivery
    shadow: ShadowHooks
    book: CallBook
    usage: Usage
    call_log: CallLog | None

    async def serve(self, request: Request, reply: Reply) -> None:
        """One call, from its checked body to its last byte. Raises CallError."""
        story = request.story
        named = self.routing.named(request.body.model, request.headers)
        wish = slo_wish(request.headers)
        with story.trace.step("route"):
            session = await self._session_of(request)
            choice = Choice(named) if named else await self._choice(session, request)
        model = choice.model
        check_prompt_length(request.body, model, self.models[model].max_model_len)

        call = self.book.begin(session, request.body, model, request.arrived_s, wish)
        session.expect(choice.next_probabilities)
        call.client, call.trace = request.client, story.trace
        job = story.job = Job(session, call, request.body)
        self.shadow.call_started(session, call)
        try:
            pair, handoff = await self.legs.prefill(job)
            with pair.handing_over(handoff is not None):
                answer = await self.legs.decode(job, pair, handoff)
            try:
                with story.trace.step("answer"):
                    await self.delivery.deliver(job, answer, handoff, reply)
            finally:
                self.legs.release(answer)
        except BaseException as error:
            self._ended(job, error)
            raise
        self._ended(job, None)
        await self.sessions.save(session)

    async def _session_of(self, request: Request) -> Session:
        body, tenant = request.body, request.client.tenant
        name = named_session(request.headers, body)
        if name is not None:
            session = await self.sessions.get_or_create(tenant, name, body.kind)
        elif body.kind is not CallKind.TEXT:
            digests = history_digests(body.kind, body.prompt)
            session = await self.sessions.extend(tenant, body.kind, digests)
        else:
            # Plain text has no messages to find a session by: it is a session of one call.
            session = Session(id="", tenant=tenant, kind=body.kind, identified=False)
        kind = request.headers.get(KIND_HEADER)
        if kind is not None:
            session.task_kind = task_kind(kind)
        wish = request.headers.get(SHADOW_HEADER)
        if wish is not None:
            session.shadow_enabled = wish.strip().lower() != b"off"
        return session

    async def _choice(self, session: Session, request: Request) -> Choice:
        view = SessionView(
            session_id=session.id,
            call=session.calls_total + 1,
            current_model=session.current_model,
            prompt_json=bytes(request.body.prompt),
        )
        return await self.routing.choose(view)

    def _ended(self, job: Job, error: BaseException | None) -> None:
        outcome = outcome_of(error)
        reason = "the client disconnected" if outcome is Outcome.CANCELLED else str(error)
        call = job.call
        self.book.end(job.session, call, outcome, None if error is None else reason)
        self.usage.call_ended(call.client, call, outcome, call.record.shadow_tokens)
        self.shadow.call_ended(job.session, job.call, outcome is Outcome.OK)
        if self.call_log is not None and outcome is Outcome.OK:
            self.call_log.ended(job.session, call)


def outcome_of(error: BaseException | None) -> Outcome:
    if error is None:
        return Outcome.OK
    if isinstance(error, asyncio.CancelledError):
        return Outcome.CANCELLED
    return Outcome.REJECTED if isinstance(error, EngineRejected) else Outcome.FAILED
