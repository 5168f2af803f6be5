"""The state of all shadow work of one (session, model): what is wanted, what is held, what is next.

Pure bookkeeping, no I/O: `coordinator.shadow_work` acts on it. Token ids are kept as 32-bit arrays,
and only the newest stable prefix: what was submitted before is a prefix of it, or of no use."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from coordinator.call_trace import NO_TRACE
from coordinator.sessions import ShadowState, Warmth
from policy.segments import aligned, common_prefix_length, segment_ends
from policy.warmth import (
    HeldPrefix,
    after_segment,
    segment_computed_tokens,
    stopped_segment_tokens,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from coordinator.call_trace import CallTrace, Link
    from coordinator.history import History, HistoryHead
    from coordinator.instances import Pair
    from coordinator.sessions import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """Of one target model."""

    block_size: int
    max_tokens: int
    """Longest prompt that leaves room for the one output token of a segment."""
    segment_tokens: int
    resubmit_tokens: int
    push_tokens: int
    """Most that D lacks of what is handed over at once."""


class Step(NamedTuple):
    """What to do next: make prompt[:end] held by P, and by D if it lacks nothing before it."""

    end: int
    is_push: bool
    """P holds it already: this is only for D."""


@dataclass(slots=True, eq=False)
class ShadowJob:
    session: Session
    model: str
    limits: JobLimits
    bytes_per_token: float
    """The configured guess until the first render, then what was measured."""
    probability: float = 0.0
    trace: CallTrace = NO_TRACE
    """Of the call that the newest history comes from."""
    newest_segment: Link = None
    """That P finished."""
    pending: History | None = None
    """The newest history that has not been rendered."""
    own: HistoryHead | None = None
    """Of the session's last call on this model: names what that call left in its cache."""
    pair: Pair | None = None
    wanted: array[int] = field(default_factory=lambda: array("I"))
    """Stable prefix of the newest rendered history."""
    final: bool = True
    """False while the history still grows: small pieces wait."""
    covered: int = 0
    """wanted[:covered] is held by P, as far as we know."""
    pushed: int = 0
    """wanted[:pushed] is held by D, as far as we know."""
    in_flight: int = 0
    """End of the segment in flight; 0: none."""
    push_end: int = 0
    """End of the segment that D is pulling; 0: none."""
    stalled: bool = False
    """A segment of this history failed: wait for the next one."""
    push_failed: bool = False
    is_rendering: bool = False
    version: int = 0
    """Counts rendered histories."""
    rendering: asyncio.Task[None] | None = None
    submitting: asyncio.Task[None] | None = None
    pushing: asyncio.Task[None] | None = None

    @property
    def warmth(self) -> Warmth:
        return self.session.warmth_of(self.model)

    @property
    def is_busy(self) -> bool:
        return any(map(is_running, (self.rendering, self.submitting, self.pushing)))

    def is_for_call(self, number: int) -> bool:
        """Whether the history of this call of the session is on its way or done."""
        is_coming = self.pending is not None or self.is_rendering
        return is_coming or (self.warmth.rendered_call == number and not self.stalled)

    @property
    def missing_tokens(self) -> int:
        return max(0, self._aligned(len(self.wanted)) - self.covered)

    def take(self) -> History | None:
        """The history to render now."""
        history, self.pending = self.pending, None
        return history

    def retarget(self, stable: Sequence[int], history: History, pair: Pair) -> bool:
        """A newer history is rendered. False: the segment in flight is not a prefix of it. (A pull
        that is none is stopped here: what it leaves on D is of no use.)"""
        wanted = array("I", stable[: self.limits.max_tokens])
        common = common_prefix_length(self.wanted, wanted)
        if self.in_flight or self.next_step() is not None:
            self.warmth.superseded += 1
        same_p = self.pair is None or self.pair.prefill is pair.prefill
        same_d = self.pair is None or self.pair.decode is pair.decode
        own_p, own_d = self._own_tokens(history, pair)
        shadow = self._aligned(min(self.covered, common)) if same_p else 0
        pushed = self._aligned(min(self.pushed, common)) if same_d else 0
        if self.push_end > common or not same_d:
            self._stop_push()
        limit = self._aligned(len(wanted))
        self.covered, self.pushed = min(max(own_p, shadow), limit), min(max(own_d, pushed), limit)
        self.wanted, self.final, self.pair = wanted, not history.is_growing, pair
        self.stalled = self.push_failed = False
        self.version += 1
        self.bytes_per_token = history.size_bytes / max(1, len(wanted))
        self.warmth.shadow_tokens = min(self.warmth.shadow_tokens, shadow)
        self.warmth.running_tokens = self.in_flight
        self.warmth.stopped_tokens = min(self.warmth.stopped_tokens, common) if same_p else 0
        self.warmth.rendered_call = self.session.calls_total
        self._report()
        return same_p and self.in_flight <= common

    def next_step(self) -> Step | None:
        """The next segment, or what D still lacks; None: nothing is due."""
        if self.stalled:
            return None
        if ends := self._ends(self.covered, len(self.wanted), self.final):
            return Step(ends[0], is_push=False)
        if self.pair is None or self.pair.colocated or self.push_failed or self.push_end:
            return None
        ends = self._ends(self.pushed, self.covered, True, self.limits.push_tokens)
        return Step(ends[0], is_push=True) if ends else None

    def hands_over(self, step: Step) -> bool:
        """Whether this segment is handed over as it is computed: D lacks nothing before it, and it
        is no longer than one push."""
        keeps_up = self.pushed >= self.covered and not self.push_end
        return keeps_up and step.end - self.pushed <= self.limits.push_tokens

    def found_on_decode(self, held_tokens: int) -> None:
        """What D says it holds; it may have evicted what it was given."""
        self.pushed = self._aligned(min(held_tokens, len(self.wanted)))
        self._report()

    def begin(self, end: int) -> None:
        self.in_flight = self.warmth.running_tokens = end
        self.show_state()

    def begin_push(self, end: int, task: asyncio.Task[None]) -> None:
        self.push_end, self.pushing = end, task
        self.show_state()

    def computed(self, end: int, cached_tokens: int) -> int:
        """P holds wanted[:end] now; gives what that cost."""
        warmth = self.warmth
        held = HeldPrefix(own_tokens=warmth.own_tokens, shadow_tokens=warmth.shadow_tokens)
        stopped = stopped_segment_tokens(held, warmth.stopped_tokens, cached_tokens)
        if stopped:
            held = replace(held, shadow_tokens=held.tokens + stopped)
        warmth.stopped_tokens = 0
        cost = segment_computed_tokens(end, cached_tokens) + stopped
        held = after_segment(held, end, cached_tokens, self.limits.block_size)
        warmth.own_tokens, warmth.shadow_tokens = held.own_tokens, held.shadow_tokens
        warmth.segments += end > self.covered
        warmth.computed_tokens += cost
        self.covered = max(self.covered, end)
        self._report()
        return cost

    def pushed_to(self, end: int) -> int:
        """D holds wanted[:end] now; gives what that moved, as far as we know."""
        self.push_end = 0
        moved = max(0, end - self.pushed)
        self.pushed = max(self.pushed, end)
        self.warmth.pushed_tokens += moved
        self._report()
        return moved

    def lost_push(self) -> None:
        self.push_end = 0
        self.push_failed = True

    def lost_segment(self) -> None:
        """It ended early, by us or by the engine: what it had computed is cached all the same."""
        self.warmth.stopped_tokens = max(self.warmth.stopped_tokens, self.in_flight)

    def end_segment(self) -> None:
        self.in_flight = self.warmth.running_tokens = 0
        self.show_state()

    def show_state(self) -> None:
        """For people: the most telling of what goes on."""
        if self.in_flight:
            self.warmth.state = ShadowState.RUNNING
        elif self.push_end:
            self.warmth.state = ShadowState.PUSHING
        else:
            rendering = self.is_rendering
            self.warmth.state = ShadowState.RENDERING if rendering else ShadowState.IDLE

    def stop(self) -> bool:
        """Cancels what runs and forgets what was to come; whether anything was lost by it."""
        lost = self.is_busy
        for task in (self.rendering, self.submitting):
            if task is not None:
                task.cancel()
        self._stop_push()
        self.lost_segment()
        self.rendering = self.submitting = self.pending = None
        self.stalled, self.is_rendering = True, False
        # `running_tokens` stays: what the engine had computed of that segment is cached, and the
        # call that stopped it is about to ask how much of its prompt a shadow may have put there.
        self.in_flight = 0
        self.show_state()
        return lost

    def drop_segment(self) -> None:
        """Cancels the segment in flight only."""
        if self.submitting is not None:
            self.submitting.cancel()
            self.submitting = None
        self.lost_segment()
        self.end_segment()

    def _stop_push(self) -> None:
        if self.pushing is not None:
            self.pushing.cancel()
        self.push_end, self.pushing = 0, None

    def check(self) -> None:
        """What must always be true; tests call it after every step."""
        size = self.limits.block_size
        assert self.covered <= len(self.wanted), (self.covered, len(self.wanted))
        assert self.pushed <= len(self.wanted), (self.pushed, len(self.wanted))
        assert self.push_end <= len(self.wanted), (self.push_end, len(self.wanted))
        assert self.covered % size == 0, self.covered
        assert len(self.wanted) <= self.limits.max_tokens, len(self.wanted)
        assert self.in_flight in (0, self.warmth.running_tokens), self.in_flight

    def _own_tokens(self, history: History, pair: Pair) -> tuple[int, int]:
        """What the model's own last call left of this history on P and on D, in whole blocks."""
        warmth = self.warmth
        if self.own is None or not history.extends(self.own):
            return 0, 0
        own = self._aligned(warmth.own_tokens)
        is_p = warmth.prefill_instance in (None, pair.prefill.name)
        is_d = warmth.decode_instance in (None, pair.decode.name)
        return own * is_p, own * is_d

    def _aligned(self, tokens: int) -> int:
        return aligned(tokens, self.limits.block_size)

    def _ends(self, covered: int, stable: int, final: bool, most: int | None = None) -> list[int]:
        return segment_ends(
            stable_tokens=stable,
            covered_tokens=covered,
            block_size=self.limits.block_size,
            segment_tokens=min(self.limits.segment_tokens, most or self.limits.segment_tokens),
            resubmit_tokens=self.limits.resubmit_tokens,
            final=final,
        )

    def _report(self) -> None:
        warmth = self.warmth
        warmth.covered_tokens, warmth.missing_tokens = self.covered, self.missing_tokens
        warmth.decode_tokens = self.pushed
        warmth.switch_probability = self.probability


def is_running(task: asyncio.Task[None] | None) -> bool:
    return task is not None and not task.done()
