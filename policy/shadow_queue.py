"""Which shadow job is served next, and which one a newer event makes pointless.

Order: switch probability, then the job that was served longest ago, then arrival. A job is one
request of the engine; at most one lives per (session, model). The queue decides; whoever hosts it
aborts the requests whose ids it returns.

Pure. Hosts: engine.scheduler, bench.sim."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowJob:
    """One submitted segment. An empty session id is a job of its own: nothing supersedes it."""

    request_id: str
    session_id: str
    missing_tokens: int
    probability: float
    model: str = ""
    """Empty where the queue belongs to an engine, which serves one model."""

    def __post_init__(self) -> None:
        if self.missing_tokens < 1:
            raise ValueError(f"shadow job {self.request_id}: nothing is missing")
        if not 0 <= self.probability <= 1:
            raise ValueError(
                f"shadow job {self.request_id}: probability must be between 0 and 1, "
                f"got {self.probability}"
            )


@dataclass(frozen=True, slots=True)
class ShadowChunk:
    """Tokens of one job for one iteration."""

    request_id: str
    tokens: int


@dataclass(slots=True)
class _Entry:
    job: ShadowJob
    arrived: int
    last_served: int = 0


class ShadowQueue:
    """The jobs of one instance. Turns are counted, not timed: there is no clock in here."""

    __slots__ = ("_by_session", "_entries", "_turn")

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._by_session: dict[tuple[str, str], str] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    def __getitem__(self, request_id: str) -> ShadowJob:
        return self._entries[request_id].job

    @property
    def missing_tokens(self) -> int:
        return sum(entry.job.missing_tokens for entry in self._entries.values())

    def add(self, job: ShadowJob) -> list[str]:
        """Returns the request that this job supersedes, if any: abort it."""
        if job.request_id in self._entries:
            raise ValueError(f"shadow job {job.request_id} is already queued")
        entry = _Entry(job, arrived=self._next_turn())
        superseded = self._remove(self._by_session.get(_key(job), ""))
        if superseded is not None:
            # A session that resubmits often must not get more turns than one that does not.
            entry.last_served = superseded.last_served
        self._entries[job.request_id] = entry
        if job.session_id:
            self._by_session[_key(job)] = job.request_id
        return [] if superseded is None else [superseded.job.request_id]

    def ordered(self) -> list[ShadowJob]:
        """All jobs, the next one to serve first."""
        return [entry.job for entry in sorted(self._entries.values(), key=_rank)]

    def plan(self, tokens: int) -> list[ShadowChunk]:
        """Spread a grant over the jobs in order. Nothing is recorded until `served`."""
        chunks: list[ShadowChunk] = []
        for job in self.ordered():
            if tokens <= 0:
                break
            chunks.append(ShadowChunk(job.request_id, min(tokens, job.missing_tokens)))
            tokens -= chunks[-1].tokens
        return chunks

    def served(self, request_id: str, tokens: int) -> int:
        """The engine scheduled these tokens. Returns what is still missing; at 0 the job has
        left."""
        entry = self._entries[request_id]
        assert 0 < tokens <= entry.job.missing_tokens, (entry.job, tokens)
        entry.last_served = self._next_turn()
        return self._set_missing(entry, entry.job.missing_tokens - tokens)

    def truncate(self, request_id: str, missing_tokens: int) -> int:
        """Leave out the job's end, so that it fits under the KV cap; never lengthens it. Returns
        what is still missing; at 0 the job has left."""
        entry = self._entries[request_id]
        return self._set_missing(entry, max(0, min(missing_tokens, entry.job.missing_tokens)))

    def restart(self, request_id: str, missing_tokens: int) -> None:
        """Its blocks were given up to normal traffic: what was computed is missing again."""
        assert missing_tokens > 0, (request_id, missing_tokens)
        self._set_missing(self._entries[request_id], missing_tokens)

    def cancel(self, request_id: str) -> bool:
        """False if the job is not (or no longer) here: a client may cancel what has just ended."""
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
            assert entry.job.missing_tokens > 0, entry
            assert 0 <= entry.last_served <= self._turn, (entry, self._turn)
        with_session = {
            _key(entry.job): request_id
            for request_id, entry in self._entries.items()
            if entry.job.session_id
        }
        assert with_session == self._by_session, (with_session, self._by_session)
        arrivals = {entry.arrived for entry in self._entries.values()}
        assert len(arrivals) == len(self._entries), self._entries

    def _next_turn(self) -> int:
        self._turn += 1
        return self._turn

    def _set_missing(self, entry: _Entry, missing_tokens: int) -> int:
        if missing_tokens == 0:
            self._remove(entry.job.request_id)
        else:
            entry.job = replace(entry.job, missing_tokens=missing_tokens)
        return missing_tokens

    def _remove(self, request_id: str) -> _Entry | None:
        entry = self._entries.pop(request_id, None)
        if entry is not None and entry.job.session_id:
            del self._by_session[_key(entry.job)]
        return entry


def _key(job: ShadowJob) -> tuple[str, str]:
    return job.session_id, job.model


def _rank(entry: _Entry) -> tuple[float, int, int]:
    return -entry.job.probability, entry.last_served, entry.arrived
