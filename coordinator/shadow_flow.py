"""Flow 2, a shadow job: what flow 1 shows of a call becomes warm KV on the models not chosen.

    call_started  -> the target that the call goes to is left alone at once: a switch never waits
                  -> every other likely model's job is extended with the new input
    output_bytes  -> kept, read four times a second; the jobs grow once per `resubmit_tokens`
    call_ended    -> the jobs cover exactly h_k

The hooks run on the hot path: they append, set an event, cancel a task. `_watch` does the rest in
the background and hands histories to `coordinator.shadow_work`, where a job's own story goes on."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coordinator.history import NoHistory
from coordinator.kept_histories import KeptHistories
from coordinator.shadow_counters import ShadowCounters
from coordinator.shadow_feed import CallFeed
from coordinator.shadow_job import JobLimits, ShadowJob
from coordinator.shadow_targets import ShadowTargets
from coordinator.shadow_work import ShadowWorker
from policy.vocabulary import Controller, RequestClass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from configs.schema import ClusterConfig, ShadowConfig
    from coordinator.calls import CallContext
    from coordinator.history import History
    from coordinator.node_state import Cluster
    from coordinator.sessions import Session
    from coordinator.shadow_quota import ShadowQuota
    from coordinator.usage import Usage
    from policy.switching import SwitchTarget

logger = logging.getLogger(__name__)

BATCH_S = 0.25
"""How often relayed bytes are read while calls stream."""

SessionKey = tuple[str, str]


@dataclass(slots=True, eq=False)
class _SessionShadows:
    """What the flow keeps of one session."""

    newest: CallFeed | None = None
    """Of parallel calls the last one to arrive; the others make no history."""
    jobs: dict[str, ShadowJob] = field(default_factory=dict)


class ShadowFlow:
    """The hooks of `coordinator.calls.ShadowHooks`, and the tasks behind them."""

    def __init__(
        self,
        config: ClusterConfig,
        cluster: Cluster,
        quota: ShadowQuota,
        usage: Usage,
        changed: Callable[[Session], None] = lambda session: None,
    ) -> None:
        """`changed`: told of every session that shadow work has changed."""
        self._counters = ShadowCounters()
        self._config = config
        self._shadow = config.shadow
        self._targets = ShadowTargets(config, self._counters, cluster.clock)
        self._worker = ShadowWorker(
            config, cluster, self._counters, quota, self._targets, usage, changed
        )
        self._sessions: dict[SessionKey, _SessionShadows] = {}
        self._kept = KeptHistories()
        self._feeds: dict[int, CallFeed] = {}
        """By id of the call, which the feed keeps alive."""
        self._changed: list[CallFeed] = []
        self._wake = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None

    # --- the hot path

    def call_started(self, session: Session, call: CallContext) -> None:
        shadows = self._sessions.get(session.key)
        if shadows is not None and (job := shadows.jobs.get(call.model)) is not None:
            self._worker.stop_job(job, "switch")
        if not session.shadow_enabled:
            self._drop(session.key, "shadow_off")
            return
        if call.request_class is not RequestClass.ROUTED or not self._is_on:
            return
        feed = CallFeed(session, call)
        # Moved to the end: the least recently used sessions are the first to be forgotten.
        shadows = self._sessions.pop(session.key, None) or _SessionShadows()
        self._sessions[session.key] = shadows
        self._kept.forget(session.key)
        shadows.newest = feed
        if len(self._sessions) > self._config.coordinator.max_sessions:
            self._drop(next(iter(self._sessions)), "forgotten")
        self._feeds[id(call)] = feed
        self._changed.append(feed)
        self._wake.set()

    def output_bytes(self, session: Session, call: CallContext, chunk: bytes) -> None:
        feed = self._feeds.get(id(call))
        if feed is not None:
            feed.chunks.append(chunk)

    def call_ended(self, session: Session, call: CallContext, ok: bool) -> None:
        self._worker.account(session, call.model, call.stopped_segment_tokens)
        feed = self._feeds.pop(id(call), None)
        if feed is None:
            return
        self._targets.used(call.model, call.record.shadow_tokens)
        if call.record.shadow_tokens:
            self._show_use(session, call)
        feed.ended, feed.ok = True, ok
        self._changed.append(feed)
        self._wake.set()

    def _show_use(self, session: Session, call: CallContext) -> None:
        shadows = self._sessions.get(session.key)
        job = None if shadows is None else shadows.jobs.get(call.model)
        if job is not None:
            call.trace.uses(job.newest_segment)

    # --- beside it

    async def start(self) -> None:
        await self._targets.start()
        self._watcher = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            with suppress(asyncio.CancelledError):
                await self._watcher
            self._watcher = None
        for key in tuple(self._sessions):
            self._drop(key, "stopped")
        self._feeds.clear()
        self._changed.clear()
        self._kept.clear()
        await self._worker.stop()
        await self._targets.stop()

    def session_finished(self, session: Session) -> None:
        """The session is over or forgotten: its running shadow work is of no use any more."""
        self._drop(session.key, "session_finished")

    def hinted(self, session: Session) -> tuple[SwitchTarget, ...]:
        """Jobs for models that the hint leaves out end; those for new ones begin, if the history is
        at hand. A call that has not been read yet will ask for its targets by itself."""
        shadows = self._sessions.get(session.key)
        if shadows is None or session.current_model is None or not self._is_on:
            return ()
        targets = self._targets.of(session, session.current_model)
        wanted = {target.model for target in targets}
        for model in shadows.jobs.keys() - wanted:
            self._worker.stop_job(shadows.jobs[model], "hint")
        feed, history = shadows.newest, self._kept.of(session.key)
        if feed is not None:
            feed.targets = targets
            history = feed.grown() if feed.history is not None and feed.readable else feed.history
        if history is not None:
            self._aim(shadows, session, targets, history)
        return targets

    def snapshot(self, session: Session) -> dict[str, dict[str, Any]]:
        """The `shadows` part of `GET /v1/sessions/{id}`."""
        shadows = self._sessions.get(session.key)
        jobs = shadows.jobs if shadows is not None else {}
        models = [
            model for model in self._targets.models if model in session.warmth or model in jobs
        ]
        return {model: _shown(session, model, jobs.get(model)) for model in models}

    def reconfigure(self, shadow: ShadowConfig, off: Collection[str]) -> None:
        self._shadow = shadow
        self._targets.reconfigure(shadow, off)
        if not self._is_on:
            for key in tuple(self._sessions):
                self._drop(key, "controller_off")

    @property
    def counters(self) -> ShadowCounters:
        return self._counters

    @property
    def running(self) -> int:
        return self._worker.running

    @property
    def _is_on(self) -> bool:
        return self._shadow.controller is not Controller.OFF

    def _drop(self, key: SessionKey, reason: str) -> None:
        shadows = self._sessions.pop(key, None)
        self._kept.forget(key)
        if shadows is None:
            return
        for job in shadows.jobs.values():
            self._worker.stop_job(job, reason)

    # --- the background: from bytes to histories

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        next_sweep_s = loop.time()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(BATCH_S if self._feeds else None):
                    await self._wake.wait()
            self._wake.clear()
            due, self._changed = self._changed, []
            if loop.time() >= next_sweep_s:
                due = [*due, *self._feeds.values()]
                next_sweep_s = loop.time() + BATCH_S
            for feed in dict.fromkeys(due):
                self._advance_supervised(feed)
                await asyncio.sleep(0)  # calls go first, however many feeds there are

    def _advance_supervised(self, feed: CallFeed) -> None:
        """The one place that catches everything: a bug met in one call must not end the watch."""
        try:
            self._advance(feed)
        except Exception:
            logger.exception("shadow of a call of session %s failed", feed.session.id)
            self._counters.failed["bug"] += 1
            self._feeds.pop(id(feed.call), None)

    def _advance(self, feed: CallFeed) -> None:
        shadows = self._sessions.get(feed.session.key)
        if shadows is None or shadows.newest is not feed or feed.closed:
            self._feeds.pop(id(feed.call), None)
            return
        is_new = feed.history is None
        if is_new and not self._open(feed):
            self._feeds.pop(id(feed.call), None)
            return
        assert feed.history is not None
        feed.read()
        if feed.ended:
            self._finish(shadows, feed)
        elif is_new:
            self._extend(shadows, feed, feed.history)
        elif feed.readable and _new_tokens(shadows, feed) >= self._shadow.resubmit_tokens:
            self._extend(shadows, feed, feed.grown())

    def _open(self, feed: CallFeed) -> bool:
        """Reads what a call brought and decides whose jobs it extends; False: nobody's."""
        self._targets.observe(feed.session, feed.call)
        history = feed.open(self._targets.of(feed.session, feed.call.model))
        if isinstance(history, NoHistory):
            self._counters.skipped[history] += 1
            return False
        return True

    def _finish(self, shadows: _SessionShadows, feed: CallFeed) -> None:
        assert feed.history is not None
        feed.closed, shadows.newest = True, None
        if feed.ok and feed.call.model in self._targets.models:
            self._job(shadows, feed.session, feed.call.model).own = feed.history.head()
        if feed.ok and not feed.readable:
            self._counters.skipped["unreadable_answer"] += 1
        # What was said before it failed will not be in the next prompt.
        last = feed.grown() if feed.ok and feed.readable else feed.history
        self._kept.keep(feed.session.key, last)
        self._extend(shadows, feed, last)

    def _extend(self, shadows: _SessionShadows, feed: CallFeed, history: History) -> None:
        for target in feed.targets:
            job = self._job(shadows, feed.session, target.model)
            job.probability, job.trace = target.probability, feed.call.trace
            self._worker.extend(job, history)

    def _aim(
        self,
        shadows: _SessionShadows,
        session: Session,
        targets: tuple[SwitchTarget, ...],
        history: History,
    ) -> None:
        """After a hint: a job that has this history already only changes its place in the queue."""
        for target in targets:
            job = self._job(shadows, session, target.model)
            job.probability = target.probability
            if not job.is_for_call(session.calls_total):
                self._worker.extend(job, history)

    def _job(self, shadows: _SessionShadows, session: Session, model: str) -> ShadowJob:
        if (job := shadows.jobs.get(model)) is not None:
            return job
        config, shadow = self._config.models[model], self._shadow
        limits = JobLimits(
            block_size=config.block_size,
            max_tokens=config.max_model_len - 1,
            segment_tokens=shadow.segment_tokens,
            resubmit_tokens=shadow.resubmit_tokens,
            push_tokens=shadow.push_tokens,
        )
        job = shadows.jobs[model] = ShadowJob(session, model, limits, config.bytes_per_token)
        return job


def _new_tokens(shadows: _SessionShadows, feed: CallFeed) -> float:
    """Estimate, for the target whose tokens are the shortest; each job then counts exactly."""
    shortest = min(
        (shadows.jobs[target.model].bytes_per_token for target in feed.targets),
        default=float("inf"),
    )
    return feed.new_text_bytes / shortest


def _shown(session: Session, model: str, job: ShadowJob | None) -> dict[str, Any]:
    warmth = session.warmth_of(model)
    return {
        "state": str(warmth.state),
        "covered_tokens": warmth.covered_tokens,
        "missing_tokens": warmth.missing_tokens if job is not None else 0,
        "computed_tokens": warmth.computed_tokens,
        "used_tokens": warmth.used_tokens,
        "pushed_tokens": warmth.pushed_tokens,
        "segments": warmth.segments,
        "superseded": warmth.superseded,
        "failed": warmth.failed,
        "switch_probability": warmth.switch_probability,
    }
