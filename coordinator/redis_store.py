"""Sessions in Redis, for several coordinators behind one address: any of them serves the next call
where the last one left the session, also when that coordinator is gone.

One script reads and writes a session at once; a session that was removed meanwhile stays removed.
What a coordinator holds of a session lives as long as somebody there works with it. One Redis, not
a cluster of them: the script touches keys of several sessions when the oldest makes room."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from redis.asyncio import Redis
from redis.exceptions import RedisError

from coordinator.errors import StoreUnavailable
from coordinator.session_store import UNNAMED_PREFIX, Page
from coordinator.sessions import KEPT_CALLS, Session
from coordinator.shared_session import (
    IDENTITY,
    Flat,
    Synced,
    changes,
    encoded_call,
    flat_of,
    identified,
    identity_of,
    merge,
    merge_calls,
    note_stored,
    unstored_calls,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from coordinator.calls import CallKind
    from coordinator.sessions import CallRecord

PREFIX: Final = "shadowprefill"
FLUSH_S: Final = 0.25
"""How soon others see what shadow work did between calls."""
TIMEOUT_S: Final = 10.0
CALLS_READ: Final = 20
"""Records that a call brings along; the control API reads all of them."""

_SYNC: Final = """
local hash, calls, everybody, own = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local ttl_ms, now, member, most, prefix = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local identity, uses = ARGV[6], ARGV[7] == '1'
if redis.call('EXISTS', hash) == 0 then
  if identity == '' then return nil end
  redis.call('HSET', hash, 'id', identity)
end
local at = 8
local function each(apply)
  local count = tonumber(ARGV[at]); at = at + 1
  for _ = 1, count do apply() end
end
each(function() redis.call('HINCRBY', hash, ARGV[at], ARGV[at + 1]); at = at + 2 end)
each(function() redis.call('HSET', hash, ARGV[at], ARGV[at + 1]); at = at + 2 end)
each(function() redis.call('RPUSH', calls, ARGV[at]); at = at + 1 end)
redis.call('LTRIM', calls, -tonumber(ARGV[at]), -1)
if uses then
  redis.call('PEXPIRE', hash, ttl_ms)
  redis.call('ZADD', everybody, now, member)
  redis.call('ZADD', own, now, member)
  redis.call('PEXPIRE', own, ttl_ms)
end
redis.call('PEXPIRE', calls, redis.call('PTTL', hash))
while redis.call('ZCARD', everybody) > most do
  local oldest = redis.call('ZPOPMIN', everybody)[1]
  local tenant = string.match(oldest, '^[^/]*')
  redis.call('DEL', prefix .. ':session:' .. oldest, prefix .. ':calls:' .. oldest)
  redis.call('ZREM', prefix .. ':of:' .. tenant, oldest)
end
local used = redis.call('ZSCORE', everybody, member) or now
return {redis.call('HGETALL', hash), redis.call('LRANGE', calls, -tonumber(ARGV[at + 1]), -1), used}
"""

_log = logging.getLogger(__name__)


class RedisStore:
    """The port coordinator.session_store.SessionStore."""

    def __init__(
        self,
        url: str,
        *,
        password: str = "",
        ttl_s: float,
        max_sessions: int,
        clock: Callable[[], float],
        on_dropped: Callable[[Session], None] = lambda session: None,
        prefix: str = PREFIX,
    ) -> None:
        self._redis: Any = Redis.from_url(
            url,
            password=password or None,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
        )
        self._sync_script = self._redis.register_script(_SYNC)
        self._ttl_ms = int(ttl_s * 1000)
        self._max_sessions = max_sessions
        self.on_dropped = on_dropped
        self._prefix = prefix
        self._wall_s = time.time() - clock()
        self._held: WeakValueDictionary[tuple[str, str], Session] = WeakValueDictionary()
        self._synced: WeakKeyDictionary[Session, Synced] = WeakKeyDictionary()
        self._changed: set[Session] = set()
        self._flushing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._flushing = asyncio.create_task(self._flush_now_and_then())

    async def stop(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            with suppress(asyncio.CancelledError):
                await self._flushing
        await self._flush()
        await self._redis.aclose()

    def changed(self, session: Session) -> None:
        """Outside a call: others see it soon."""
        self._changed.add(session)

    async def get(self, tenant: str, session_id: str) -> Session | None:
        """A look: only calls keep a session alive."""
        return await self._loaded(tenant, session_id, uses=False)

    async def _loaded(self, tenant: str, session_id: str, *, uses: bool) -> Session | None:
        session = self._held.get((tenant, session_id))
        if session is None:
            place = self._key("session", _member(tenant, session_id))
            raw = await self._asked(self._redis.hget(place, IDENTITY))
            if raw is None:
                return None
            # Meanwhile another call here may have loaded it: two of one would drift apart.
            session = self._held.get((tenant, session_id)) or self._hold(identified(raw))
        is_there = await self._sync(session, uses=uses, calls=KEPT_CALLS)
        return session if is_there else None

    async def get_or_create(self, tenant: str, session_id: str, kind: CallKind) -> Session:
        session = self._held.get((tenant, session_id))
        if session is None:
            session = self._hold(Session(id=session_id, tenant=tenant, kind=kind, identified=True))
        await self._sync(session, uses=True, create=True)
        return session

    async def extend(self, tenant: str, kind: CallKind, digests: list[bytes]) -> Session:
        session = await self._longest_history(tenant, digests[:-1])
        if session is None:
            name = UNNAMED_PREFIX + secrets.token_hex(16)
            session = self._hold(Session(id=name, tenant=tenant, kind=kind, identified=False))
            await self._sync(session, uses=True, create=True)
        session.history_digest = digests[-1] if digests else b""
        return session

    async def save(self, session: Session) -> None:
        """A call has ended: an unnamed session can be continued from now on."""
        if (
            await self._sync(session, uses=True)
            and session.history_digest
            and not session.identified
        ):
            place = self._key("history", session.tenant, session.history_digest.hex())
            await self._asked(self._redis.set(place, session.id, px=self._ttl_ms))

    async def remove(self, tenant: str, session_id: str) -> Session | None:
        session = await self.get(tenant, session_id)
        if session is None:
            return None
        member = _member(tenant, session_id)
        pipe = self._redis.pipeline()
        pipe.delete(self._key("session", member), self._key("calls", member))
        pipe.zrem(self._key("all"), member)
        pipe.zrem(self._key("of", tenant), member)
        await self._asked(pipe.execute())
        self._drop(session)
        return session

    async def page(self, tenant: str | None, offset: int, limit: int) -> Page:
        index = self._key("all") if tenant is None else self._key("of", tenant)
        oldest = time.time() - self._ttl_ms / 1000
        pipe = self._redis.pipeline()
        pipe.zremrangebyscore(index, "-inf", oldest)
        pipe.zrevrange(index, offset, offset + limit - 1)
        pipe.zcard(index)
        _, members, total = await self._asked(pipe.execute())
        found = [await self.get(*_named(member)) for member in members]
        return Page([session for session in found if session is not None], total)

    # --- one session

    def _hold(self, session: Session) -> Session:
        self._held[session.key] = session
        # What a session begins with was changed by nobody and overwrites nothing.
        self._synced[session] = Synced(flat=flat_of(session, self._wall_s))
        return session

    async def _sync(
        self, session: Session, *, uses: bool, create: bool = False, calls: int = CALLS_READ
    ) -> bool:
        """Sends what changed here and brings in what others changed; False: it was removed."""
        synced = self._synced.get(session)
        if synced is None:
            return False
        async with synced.lock:  # what is on its way must not be sent twice
            sent, records = flat_of(session, self._wall_s), unstored_calls(session, synced)
            stored = await self._exchanged(
                session, changes(sent, synced.flat), records, uses, create, calls
            )
            if stored is not None:
                fields, raw_calls, used_unix_s = stored
                remote = dict(zip(fields[::2], fields[1::2], strict=True))
                synced.flat = merge(session, remote, sent, self._wall_s)
                note_stored(records, synced)
                merge_calls(session, raw_calls, synced, self._wall_s)
                session.used_s = float(used_unix_s) - self._wall_s
                return True
        self._drop(session)
        return False

    async def _exchanged(
        self,
        session: Session,
        changed: Flat,
        records: list[CallRecord],
        uses: bool,
        create: bool,
        calls: int,
    ) -> Any:
        """All fields, the last call records and when a call last used it, or None: there is no such
        session."""
        member = _member(*session.key)
        keys = [
            self._key("session", member),
            self._key("calls", member),
            self._key("all"),
            self._key("of", session.tenant),
        ]
        arguments = [
            *(self._ttl_ms, time.time(), member, self._max_sessions, self._prefix),
            *(identity_of(session) if create else b"", int(uses)),
            *_counted(changed.counters.items()),
            *_counted(changed.values.items()),
            *_counted((encoded_call(record, self._wall_s),) for record in records),
            *(KEPT_CALLS, calls),
        ]
        return await self._asked(self._sync_script(keys=keys, args=arguments))

    def _drop(self, session: Session) -> None:
        self._held.pop(session.key, None)
        self._synced.pop(session, None)
        self._changed.discard(session)
        self.on_dropped(session)

    async def _longest_history(self, tenant: str, digests: list[bytes]) -> Session | None:
        """Takes it: of two calls that continue the same history one begins a new session."""
        for digest in reversed(digests):
            place = self._key("history", tenant, digest.hex())
            name = await self._asked(self._redis.getdel(place))
            if name is not None:
                return await self._loaded(tenant, name.decode(), uses=True)
        return None

    async def _flush_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            await self._flush()

    async def _flush(self) -> None:
        changed, self._changed = self._changed, set()
        for session in changed:
            try:
                await self._sync(session, uses=False)
            except StoreUnavailable as error:
                self._changed.add(session)
                _log.warning("%s; what shadow work did is kept for later", error)
                return

    async def _asked(self, answer: Any) -> Any:
        try:
            return await answer
        except (RedisError, OSError) as error:
            raise StoreUnavailable(str(error)) from None

    def _key(self, *parts: str) -> str:
        return ":".join((self._prefix, *parts))


def _member(tenant: str, session_id: str) -> str:
    """A tenant's id has no slash."""
    return f"{tenant}/{session_id}"


def _named(member: bytes) -> tuple[str, str]:
    tenant, _, session_id = member.decode().partition("/")
    return tenant, session_id


def _counted(items: Iterable[tuple[Any, ...]]) -> list[Any]:
    listed = list(items)
    return [len(listed), *(part for item in listed for part in item)]
