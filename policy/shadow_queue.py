"""Which shadow job is served next, and which one a newer event makes pointless.

Order: switch probability; jobs of equal probability take turns, and a new one begins at the end, so
that a session which submits one segment after another is served no more than the others. A job
keeps its turn until it was served `turn_tokens`: a turn per chunk would be as fair, but it starts
every job, has all of them hold KV at once, and finishes none early.

A job is one request of the engine; at most one lives per (session, model). What it still misses is
the engine's business: the queue decides, and whoever hosts it aborts the requests whose ids it
returns.

Pure. Hosts: engine.intake, bench.sim."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowJob:
    """One submitted segment. An empty session id is a job of its own: nothing supersedes it."""

    request_id: str
    session_id: str
    probability: float
    model: str = ""
    """Empty where the queue belongs to an engine, which serves one model."""

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ValueError(
                f"shadow job {self.request_id}: probability must be between 0 and 1, "
                f"got {self.probability}"
            )


Rank = tuple[float, int]


@dataclass(slots=True)
class _Entry:
    job: ShadowJob
    since: int
    """When it arrived, or when its last turn ended."""
    turn_tokens: int = 0
    """Served in the turn that has not ended."""

    @property
    def rank(self) -> Rank:
        return -self.job.probability, self.since


class ShadowQueue:
    """The jobs of one instance. Turns are counted, not timed: there is no clock in here.

    `_order` is sorted at any time and `_ranks` with it, so that no step sorts: what changes one
    job's rank moves that job alone."""

    __slots__ = ("_by_session", "_entries", "_order", "_ranks", "_turn", "_turn_tokens")

    def __init__(self, turn_tokens: int) -> None:
        assert turn_tokens > 0, turn_tokens
        self._turn_tokens = turn_tokens
        self._entries: dict[str, _Entry] = {}
        self._by_session: dict[tuple[str, str], str] = {}
        self._ranks: list[Rank] = []
        self._order: list[ShadowJob] = []
        self._turn = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    def add(self, job: ShadowJob) -> list[str]:
        """Returns the request that this job supersedes, if any: abort it."""
        if job.request_id in self._entries:
            raise ValueError(f"shadow job {job.request_id} is already queued")
        entry = _Entry(job, since=self._next_turn())
        superseded = self._remove(self._by_session.get(_key(job), ""))
        if superseded is not None:
            # A session that resubmits often must get neither more turns nor fewer.
            entry.since, entry.turn_tokens = superseded.since, superseded.turn_tokens
        self._entries[job.request_id] = entry
        self._place(entry)
        if job.session_id:
            self._by_session[_key(job)] = job.request_id
        return [] if superseded is None else [superseded.job.request_id]

    def ordered(self) -> list[ShadowJob]:
        """All jobs, the next one to serve first."""
        return self._order.copy()

    def served(self, request_id: str, tokens: int) -> None:
        """The engine scheduled these tokens of the job."""
        assert tokens > 0, (request_id, tokens)
        entry = self._entries[request_id]
        entry.turn_tokens += tokens
        if entry.turn_tokens >= self._turn_tokens:
            self._displace(entry)
            entry.since, entry.turn_tokens = self._next_turn(), 0
            self._place(entry)

    def cancel(self, request_id: str) -> bool:
        """The job is done, or given up. False if it is not (or no longer) here: a client may cancel
        what has just ended."""
        return self._remove(request_id) is not None

    def release(self, session_id: str, model: str = "") -> list[str]:
        """A routed call of the session reached this model, which must not wait for the shadow: its
        job leaves. Returns the request to abort, if any."""
        entry = self._remove(self._by_session.get((session_id, model), ""))
        return [] if entry is None else [entry.job.request_id]

    def check(self) -> None:
        """What must hold between any two calls."""
        for request_id, entry in self._entries.items():
            assert request_id == entry.job.request_id, (request_id, entry)
            assert 0 <= entry.turn_tokens < self._turn_tokens, entry
            assert 0 < entry.since <= self._turn, (entry, self._turn)
        with_session = {
            _key(entry.job): request_id
            for request_id, entry in self._entries.items()
            if entry.job.session_id
        }
        assert with_session == self._by_session, (with_session, self._by_session)
        by_rank = sorted((entry.rank, entry.job.request_id) for entry in self._entries.values())
        assert [rank for rank, _ in by_rank] == self._ranks, (by_rank, self._ranks)
        assert [request_id for _, request_id in by_rank] == [job.request_id for job in self._order]
        assert len(set(self._ranks)) == len(self._ranks), self._ranks

    def _next_turn(self) -> int:
        self._turn += 1
        return self._turn

    def _place(self, entry: _Entry) -> None:
        insort(self._ranks, entry.rank)
        self._order.insert(bisect_left(self._ranks, entry.rank), entry.job)

    def _displace(self, entry: _Entry) -> None:
        index = bisect_left(self._ranks, entry.rank)
        del self._ranks[index], self._order[index]

    def _remove(self, request_id: str) -> _Entry | None:
        entry = self._entries.pop(request_id, None)
        if entry is not None:
            self._displace(entry)
            if entry.job.session_id:
                del self._by_session[_key(entry.job)]
        return entry


def _key(job: ShadowJob) -> tuple[str, str]:
    return job.session_id, job.model
