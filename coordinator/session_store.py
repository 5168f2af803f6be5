"""Where sessions live. The in-memory store keeps them for a time to live and up to a number.

The port is asynchronous so that several coordinators can share a store: `save` is where such a
store writes a session back, and here it renews the session's age. Unnamed sessions are dropped
first, because any plain request makes one."""

from __future__ import annotations

import heapq
import secrets
from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, Protocol

from coordinator.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from coordinator.calls import CallKind

Key = tuple[str, str]
UNNAMED_PREFIX = "auto-"


class Page(NamedTuple):
    """Part of a list of sessions, the most recently used first."""

    sessions: list[Session]
    total: int


class SessionStore(Protocol):
    """The port."""

    on_dropped: Callable[[Session], None]
    """Of a session that is over or forgotten."""

    async def get(self, tenant: str, session_id: str) -> Session | None: ...

    async def get_or_create(self, tenant: str, session_id: str, kind: CallKind) -> Session: ...

    async def extend(self, tenant: str, kind: CallKind, digests: list[bytes]) -> Session:
        """The idle unnamed session whose last history this call extends, else a new one. Its
        history is this call's from now on."""

    async def save(self, session: Session) -> None: ...

    def changed(self, session: Session) -> None:
        """Something that is not a call has changed it."""

    async def remove(self, tenant: str, session_id: str) -> Session | None: ...

    async def page(self, tenant: str | None, offset: int, limit: int) -> Page:
        """Of one tenant, or (None) of all."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class MemoryStore:
    """All sessions of one coordinator process; lost when it ends, which costs warmth only."""

    def __init__(
        self,
        *,
        ttl_s: float,
        max_sessions: int,
        clock: Callable[[], float],
        on_dropped: Callable[[Session], None] = lambda session: None,
    ) -> None:
        self._ttl_s = ttl_s
        self._max_sessions = max_sessions
        self._clock = clock
        self.on_dropped = on_dropped
        self._named: OrderedDict[Key, Session] = OrderedDict()  # least recently used first
        self._unnamed: OrderedDict[Key, Session] = OrderedDict()
        self._by_tenant: dict[str, OrderedDict[Key, Session]] = {}
        self._by_history: dict[tuple[str, bytes], OrderedDict[Key, Session]] = {}

    def __len__(self) -> int:
        return len(self._named) + len(self._unnamed)

    async def get(self, tenant: str, session_id: str) -> Session | None:
        key = (tenant, session_id)
        session = self._named.get(key) or self._unnamed.get(key)
        if session is None:
            return None
        if self._expired(session):
            self._drop(session)
            return None
        return session

    async def get_or_create(self, tenant: str, session_id: str, kind: CallKind) -> Session:
        session = await self.get(tenant, session_id)
        if session is None:
            session = self._add(Session(id=session_id, tenant=tenant, kind=kind, identified=True))
        self._touch(session)
        return session

    async def extend(self, tenant: str, kind: CallKind, digests: list[bytes]) -> Session:
        session = self._longest_history(tenant, digests[:-1])
        if session is None:
            session_id = UNNAMED_PREFIX + secrets.token_hex(16)
            session = self._add(Session(id=session_id, tenant=tenant, kind=kind, identified=False))
        self._forget_history(session)
        if digests:
            session.history_digest = digests[-1]
            self._by_history.setdefault((tenant, digests[-1]), OrderedDict())[session.key] = session
        self._touch(session)
        return session

    async def save(self, session: Session) -> None:
        if session.key in self._shelf(session):
            self._touch(session)

    def changed(self, session: Session) -> None: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def remove(self, tenant: str, session_id: str) -> Session | None:
        session = await self.get(tenant, session_id)
        if session is not None:
            self._drop(session)
        return session

    async def page(self, tenant: str | None, offset: int, limit: int) -> Page:
        self._expire()
        newest_first, total = self._all(), len(self)
        if tenant is not None:
            own = self._by_tenant.get(tenant, OrderedDict())
            newest_first, total = reversed(own.values()), len(own)
        return Page(list(islice(newest_first, offset, offset + limit)), total)

    def _all(self) -> Iterable[Session]:
        shelves = (reversed(shelf.values()) for shelf in (self._named, self._unnamed))
        return heapq.merge(*shelves, key=lambda session: session.used_s, reverse=True)

    def _shelf(self, session: Session) -> OrderedDict[Key, Session]:
        return self._named if session.identified else self._unnamed

    def _add(self, session: Session) -> Session:
        self._expire()
        if len(self) >= self._max_sessions:
            shelf = self._unnamed or self._named
            self._drop(next(iter(shelf.values())))
        self._shelf(session)[session.key] = session
        self._by_tenant.setdefault(session.tenant, OrderedDict())[session.key] = session
        return session

    def _touch(self, session: Session) -> None:
        session.used_s = self._clock()
        self._shelf(session).move_to_end(session.key)
        self._by_tenant[session.tenant].move_to_end(session.key)

    def _expired(self, session: Session) -> bool:
        return session.active_calls == 0 and self._clock() - session.used_s > self._ttl_s

    def _expire(self) -> None:
        for shelf in (self._named, self._unnamed):
            while shelf and self._expired(oldest := next(iter(shelf.values()))):
                self._drop(oldest)

    def _drop(self, session: Session) -> None:
        del self._shelf(session)[session.key]
        own = self._by_tenant[session.tenant]
        del own[session.key]
        if not own:
            del self._by_tenant[session.tenant]
        self._forget_history(session)
        self.on_dropped(session)

    def _longest_history(self, tenant: str, digests: list[bytes]) -> Session | None:
        for digest in reversed(digests):
            for session in self._by_history.get((tenant, digest), {}).values():
                # A running call has no answer yet that this one could continue.
                if session.active_calls == 0:
                    return session
        return None

    def _forget_history(self, session: Session) -> None:
        place = (session.tenant, session.history_digest)
        owners = self._by_history.get(place)
        if owners is not None:
            owners.pop(session.key, None)
            if not owners:
                del self._by_history[place]
