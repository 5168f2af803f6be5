"""What one shadow job does, top to bottom: render, then segment after segment.

    extend -> _render   the target's front end turns the newest history into its stable prefix
           -> _submit   P computes prompt[:end], at most one segment more than it holds
           -> _push     if D grants it, P hands the segment over once: D pulls it

Each runs as a task, at most one per (session, model), and ends when nothing is due. A newer
history is rendered while a segment is in flight: the segment goes on if it is still a prefix, else
it is cancelled. Every failure ends at the piece of work that it hit: a shadow that is late, partial
or absent only makes a switch slower."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from coordinator.engine_post import EnginePost, ShadowFailed, ShadowFailure
from coordinator.errors import NoInstance
from coordinator.push_grants import PushGrants
from coordinator.render import Renderer
from coordinator.sessions import ShadowWorkKind
from coordinator.shadow_job import is_running
from coordinator.shadow_legs import Segment, compute, give_back, pull
from coordinator.shadow_records import recorded
from engine.marks import Marks
from policy.vocabulary import RequestClass, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from configs.schema import ClusterConfig
    from coordinator.history import History
    from coordinator.instances import Instance, Pair
    from coordinator.node_state import Cluster
    from coordinator.push_grants import Granted
    from coordinator.sessions import Session
    from coordinator.shadow_counters import ShadowCounters
    from coordinator.shadow_job import ShadowJob, Step
    from coordinator.shadow_legs import Computed
    from coordinator.shadow_quota import ShadowQuota
    from coordinator.shadow_targets import ShadowTargets
    from coordinator.usage import Usage
    from kv_transport.kv_params import RemoteKv

logger = logging.getLogger(__name__)

PUSH_WAIT_S = 0.5
"""How long the next segment waits for a pull in flight, to be handed over like the one before."""


class ShadowWorker:
    """Runs jobs; owns their tasks and connections."""

    def __init__(
        self,
        config: ClusterConfig,
        cluster: Cluster,
        counters: ShadowCounters,
        quota: ShadowQuota,
        targets: ShadowTargets,
        usage: Usage,
        changed: Callable[[Session], None],
    ) -> None:
        self._changed = changed
        self._targets = targets
        self._quota = quota
        self._usage = usage
        self._timeout_s = config.shadow.timeout_s
        self._pushes = config.shadow.pushes
        self._secret = config.coordinator.engine_secret
        self._cluster = cluster
        self._counters = counters
        connect_timeout_s = config.coordinator.connect_timeout_s
        self._post = EnginePost(connect_timeout_s=connect_timeout_s, timeout_s=self._timeout_s)
        self._renderer = Renderer(self._post, counters)
        peers = {
            name: f"{instance.kv_host}:{instance.kv_port}"
            for name, instance in config.instances.items()
            if instance.kv_port is not None
        }
        self._grants = PushGrants(self._post, counters, peers, self._timeout_s)
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()

    def extend(self, job: ShadowJob, history: History) -> None:
        """From now on the job is for this history. Bursts coalesce: only the newest is rendered."""
        self._counters.jobs += 1
        self._counters.coalesced += job.pending is not None
        job.pending = history
        if not is_running(job.rendering):
            job.rendering = self._spawn(job, self._render(job))

    def stop_job(self, job: ShadowJob, reason: str) -> None:
        """At once, without waiting: the engine drops the request when the connection closes."""
        if job.stop():
            self._counters.cancelled[reason] += 1

    @property
    def running(self) -> int:
        return len(self._tasks)

    async def stop(self) -> None:
        self._stopping = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._post.close()

    async def _render(self, job: ShadowJob) -> None:
        while (history := job.take()) is not None:
            job.is_rendering = True
            job.show_state()
            try:
                pair = self._pair(job)
                with job.trace.aside("shadow render", job.model, pair.prefill.name):
                    stable = await self._renderer.stable_prefix(pair.prefill, history)
            except ShadowFailed as error:
                self._lost(job, "render", error)
            else:
                self._retarget(job, stable, history, pair)
            job.is_rendering = False
            job.show_state()

    def _retarget(self, job: ShadowJob, stable: list[int], history: History, pair: Pair) -> None:
        superseded = job.warmth.superseded
        if not job.retarget(stable, history, pair):
            job.drop_segment()
        self._counters.superseded += job.warmth.superseded - superseded
        self._go_on(job)

    def _go_on(self, job: ShadowJob) -> None:
        if not is_running(job.submitting) and job.next_step() is not None:
            job.submitting = self._spawn(job, self._submit(job))

    def _pair(self, job: ShadowJob) -> Pair:
        """Where the session's next call on the target would go."""
        try:
            pair = self._cluster.sticky_pair(job.session, job.model)
        except NoInstance as error:
            raise ShadowFailed(ShadowFailure.UNAVAILABLE, str(error)) from None
        if pair.prefill.role is Role.DECODE:
            # Calls get by without P instances; a D that computed shadows would slow its decodes.
            text = f"no healthy prefill instance of model {job.model!r}"
            raise ShadowFailed(ShadowFailure.UNAVAILABLE, text)
        return pair

    async def _submit(self, job: ShadowJob) -> None:
        while (step := job.next_step()) is not None:
            version = job.version
            if not self._quota.allows(job.session.tenant):
                self._counters.skipped["quota"] += 1
                job.stalled = True
                return
            try:
                await self._warm(job, step)
            except ShadowFailed as error:
                self._lost(job, "segment", error)
                job.lost_segment()
                # A newer history may have come meanwhile: that one is worth its own attempt.
                job.stalled = job.version == version
            job.end_segment()
            if job.pushing is not None:
                # A quick D takes the next segment with its hand-off; a slow one must not hold up P.
                await asyncio.wait((job.pushing,), timeout=PUSH_WAIT_S)

    async def _warm(self, job: ShadowJob, step: Step) -> None:
        """One segment on P and, if D grants a push, on its way to D."""
        assert job.pair is not None
        pair, version = job.pair, job.version
        segment = self._segment(job, step.end)
        granted = None
        if self._may_push(job, pair, step):
            granted = await self._grants.get(job, pair, step, segment)
        elif step.is_push:
            job.push_failed = True
        if job.version == version and (granted is not None or not step.is_push):
            if granted is not None:
                step = step._replace(end=granted.end)
                segment = self._segment(job, step.end)
            await self._compute(job, pair, step, segment, granted)
        elif granted is not None:
            self._spawn(job, self._grants.give_back(pair, segment))

    async def _compute(
        self, job: ShadowJob, pair: Pair, step: Step, segment: Segment, granted: Granted | None
    ) -> None:
        remote_kv, clock = None, self._cluster.clock
        with recorded(job, ShadowWorkKind.SEGMENT, step.end, clock) as record:
            try:
                job.begin(step.end)
                done = await self._computed(job, pair.prefill, segment, granted is not None)
                remote_kv = done.remote_kv
            finally:
                if granted is not None and remote_kv is None:
                    self._spawn(job, self._grants.give_back(pair, segment))
            job.warmth.touched_s = clock()
            self._counters.segments += not step.is_push
            record.tokens = job.computed(step.end, done.cached_tokens)
            self.account(job.session, job.model, record.tokens)
        if remote_kv is not None:
            push = self._spawn(job, self._push(job, pair, segment, remote_kv))
            # Not at the end of `_push`: a task that is cancelled before it starts has no end.
            push.add_done_callback(lambda _: self._pushed(job, pair, remote_kv))
            job.begin_push(step.end, push)

    async def _computed(
        self, job: ShadowJob, prefill: Instance, segment: Segment, hand_off: bool
    ) -> Computed:
        with job.trace.aside("shadow segment", job.model, prefill.name) as span:
            traced = replace(segment, traceparent=span.traceparent)
            done = await compute(self._post, prefill, traced, hand_off=hand_off)
            span.set("cached_tokens", done.cached_tokens)
            span.set("end_tokens", len(segment.token_ids))
        job.newest_segment = span.link
        return done

    def _pushed(self, job: ShadowJob, pair: Pair, remote_kv: RemoteKv) -> None:
        self._grants.used(pair)
        if not remote_kv.is_taken and not self._stopping:
            self._spawn(job, give_back(self._post, pair.decode, remote_kv))

    def account(self, session: Session, model: str, tokens: int) -> None:
        """Shadow tokens that an engine has computed."""
        self._counters.computed_tokens += tokens
        self._quota.spend(session.tenant, tokens)
        self._usage.computed(session.tenant, tokens)
        self._targets.computed(model, tokens)
        self._changed(session)

    async def _push(
        self, job: ShadowJob, pair: Pair, segment: Segment, remote_kv: RemoteKv
    ) -> None:
        """D pulls one segment, once; meanwhile P goes on."""
        end, clock = len(segment.token_ids), self._cluster.clock
        try:
            with (
                recorded(job, ShadowWorkKind.PUSH, end, clock) as record,
                job.trace.aside("shadow push", job.model, pair.decode.name) as span,
            ):
                traced = replace(segment, traceparent=span.traceparent)
                await pull(self._post, pair.decode, traced, remote_kv)
                record.tokens = job.pushed_to(end)
        except ShadowFailed as error:
            # P still holds it: a switch then moves more, and computes no more.
            self._lost(job, "push", error)
            job.lost_push()
        else:
            self._counters.pushes += 1
            self._counters.pushed_tokens += record.tokens
            self._changed(job.session)
        job.show_state()
        self._go_on(job)

    def _may_push(self, job: ShadowJob, pair: Pair, step: Step) -> bool:
        if not self._pushes or pair.colocated or job.push_failed or not pair.decode.healthy:
            return False
        return step.is_push or job.hands_over(step)

    def _segment(self, job: ShadowJob, end: int) -> Segment:
        marks = Marks(
            request_class=RequestClass.SHADOW,
            session_id=job.session.mark_id,
            switch_probability=job.probability,
        )
        return Segment(
            model=job.model,
            token_ids=job.wanted[:end].tolist(),
            cache_salt=job.session.cache_salt,
            xargs=marks.to_xargs(self._secret),
        )

    def _lost(self, job: ShadowJob, step: str, error: ShadowFailed) -> None:
        self._counters.failed[f"{step}_{error.failure}"] += 1
        if error.failure in (ShadowFailure.RELEASED, ShadowFailure.TRUNCATED):
            return  # as intended: what is there already is of use, and more was not wanted
        job.warmth.failed += 1
        logger.warning(
            "shadow %s of session %s on %s lost: %s", step, job.session.id, job.model, error
        )

    def _spawn(self, job: ShadowJob, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._supervised(job, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _supervised(self, job: ShadowJob, work: Coroutine[None, None, None]) -> None:
        """The one place that catches everything: a bug in one job must not end the flow."""
        try:
            await work
        except Exception:
            logger.exception("shadow job of session %s on %s failed", job.session.id, job.model)
            self._counters.failed["bug"] += 1
            job.stop()
