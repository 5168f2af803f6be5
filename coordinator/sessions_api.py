"""`/v1/sessions`: what the coordinator knows of a tenant's sessions, and their end.

Another tenant's session and one that does not exist are the same thing here: both are looked up
under the caller's own tenant and answered alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Request, Response

from coordinator.control_answer import NOT_FOUND, REFUSED, shown
from coordinator.control_shapes import (
    Finished,
    Hint,
    HintAnswer,
    HintTarget,
    SessionDetail,
    SessionList,
    SessionQuote,
)
from coordinator.errors import ModelUnknown, SessionUnknown

if TYPE_CHECKING:
    from collections.abc import Collection

    from coordinator.access import Access
    from coordinator.calls import ShadowHooks
    from coordinator.quotes import Quotes
    from coordinator.session_store import SessionStore
    from coordinator.session_view import SessionViews
    from coordinator.sessions import Session

Offset = Annotated[int, Query(ge=0, le=10_000_000)]
Limit = Annotated[int, Query(ge=1, le=500)]
NewTokens = Annotated[int, Query(ge=0, le=10_000_000)]
Tenant = Annotated[str | None, Query(max_length=64)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsApi:
    access: Access
    sessions: SessionStore
    shadow: ShadowHooks
    views: SessionViews
    quotes: Quotes
    models: Collection[str]

    def router(self) -> APIRouter:
        router = APIRouter(tags=["sessions"])
        add, one = router.add_api_route, "/v1/sessions/{session_id:path}"
        add(
            "/v1/sessions",
            self.list_sessions,
            methods=["GET"],
            response_model=SessionList,
            responses=REFUSED,
        )
        add(
            one + "/quote",
            self.quote,
            methods=["GET"],
            response_model=SessionQuote,
            responses=NOT_FOUND,
        )
        add(
            one + "/hints",
            self.hint,
            methods=["POST"],
            response_model=HintAnswer,
            responses=NOT_FOUND,
        )
        add(
            one + "/finish",
            self.finish,
            methods=["POST"],
            response_model=Finished,
            responses=NOT_FOUND,
        )
        add(one, self.session, methods=["GET"], response_model=SessionDetail, responses=NOT_FOUND)
        add(one, self.finish, methods=["DELETE"], response_model=Finished, responses=NOT_FOUND)
        add(
            "/finish_session",
            self.finish,
            methods=["POST"],
            response_model=Finished,
            responses=NOT_FOUND,
        )
        return router

    async def list_sessions(
        self,
        request: Request,
        offset: Offset = 0,
        limit: Limit = 100,
        all_tenants: bool = False,
    ) -> Response:
        """The caller's sessions, the most recently used first, with what is warm on each model.
        `all_tenants` is for operators."""
        tenant: str | None = self.access.client(request).tenant
        if all_tenants:
            self.access.operator(request)
            tenant = None
        page = await self.sessions.page(tenant, offset, limit)
        rows = [self.views.row(session) for session in page.sessions]
        return shown(SessionList(data=rows, total=page.total, offset=offset, limit=limit))

    async def session(self, request: Request, session_id: str, tenant: Tenant = None) -> Response:
        """One session: its calls, and what is warm on each model. `tenant` is for operators."""
        session = await self._session(request, session_id, tenant)
        return shown(self.views.detail(session, self.shadow.snapshot(session)))

    async def quote(
        self, request: Request, session_id: str, new_tokens: NewTokens = 0, tenant: Tenant = None
    ) -> Response:
        """What the session's next call would cost on each model now: first token and input price.
        Looks at this session and at queues only, and binds nothing."""
        session = await self._session(request, session_id, tenant)
        return shown(self.quotes.of(session, new_tokens))

    async def hint(self, request: Request, session_id: str, hint: Hint) -> Response:
        """Says which models come next; takes the place of what was said before. Probabilities are
        about the next call, a plan about as many calls as it has models."""
        self.access.client(request)
        for model in (*(hint.probabilities or ()), *(hint.plan or ())):
            if model not in self.models:
                raise ModelUnknown(model, list(self.models))
        session = await self._session(request, session_id, None)
        session.hint(hint.probabilities or {}, hint.plan or [])
        targets = [
            HintTarget(model=target.model, probability=target.probability)
            for target in self.shadow.hinted(session)
        ]
        await self.sessions.save(session)
        return shown(HintAnswer(session_id=session_id, targets=targets))

    async def finish(self, request: Request, session_id: str, tenant: Tenant = None) -> Response:
        """Forgets the session and stops its shadow work. Calls that run go on to their end."""
        owner = self.access.tenant(request, tenant)
        session = await self.sessions.remove(owner, session_id)
        if session is None:
            raise SessionUnknown(session_id)
        return shown(Finished(session_id=session_id, calls=session.calls_total))

    async def _session(self, request: Request, session_id: str, tenant: str | None) -> Session:
        session = await self.sessions.get(self.access.tenant(request, tenant), session_id)
        if session is None:
            raise SessionUnknown(session_id)
        return session
