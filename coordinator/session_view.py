"""What a session looks like from outside: its calls, and per model what is warm, missing and spent.

Reads sessions, changes nothing. Host: coordinator.sessions_api."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from coordinator.control_shapes import (
    CallRow,
    ModelWarmth,
    SessionDetail,
    SessionRow,
    ShadowRow,
    ShadowWorkRow,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from coordinator.call_book import CallBook
    from coordinator.sessions import CallRecord, Session, ShadowRecord


class HistoryLength(NamedTuple):
    tokens: int
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionViews:
    """Writes sessions as the shapes of the control API."""

    book: CallBook
    clock: Callable[[], float]

    def row(self, session: Session) -> SessionRow:
        return SessionRow(
            session_id=session.id,
            tenant=session.tenant,
            kind=str(session.kind),
            is_named=session.identified,
            model=session.current_model,
            calls=session.calls_total,
            active_calls=session.active_calls,
            switches=session.switches,
            shadow_enabled=session.shadow_enabled,
            idle_s=max(0.0, self.clock() - session.used_s),
            models={model: self._model(session, model) for model in session.warmth},
        )

    def detail(self, session: Session, shadows: Mapping[str, Mapping[str, Any]]) -> SessionDetail:
        """`shadows`: what the shadow flow says of it."""
        warmth = session.warmth.values()
        return SessionDetail(
            session_id=session.id,
            model=session.current_model,
            summary=self.row(session),
            calls=[self._call(record) for record in session.calls],
            shadows={model: ShadowRow(**shadow) for model, shadow in shadows.items()},
            shadow_work=[self._shadow_work(record) for record in session.shadow_records],
            shadow_tokens_computed=sum(one.computed_tokens for one in warmth),
            shadow_tokens_used=sum(one.used_tokens for one in warmth),
            shadow_tokens_wasted=sum(one.wasted_tokens for one in warmth),
        )

    def history_of(self, session: Session, model: str) -> HistoryLength:
        """How long the next prompt on this model is without what is new in it."""
        known_tokens = session.known_tokens(model)
        if known_tokens is not None:
            return HistoryLength(known_tokens, True)
        return HistoryLength(self.book.tokens_of(model, session.history_bytes), False)

    def _model(self, session: Session, model: str) -> ModelWarmth:
        warmth = session.warmth[model]
        history = self.history_of(session, model)
        held_tokens = min(warmth.warm_tokens, history.tokens)
        is_one = warmth.prefill_instance == warmth.decode_instance
        decode_tokens = held_tokens if is_one else min(warmth.decode_tokens, history.tokens)
        return ModelWarmth(
            p_instance=warmth.prefill_instance,
            d_instance=warmth.decode_instance,
            history_tokens=history.tokens,
            history_exact=history.exact,
            p_warm_tokens=held_tokens,
            d_warm_tokens=decode_tokens,
            missing_tokens=history.tokens - held_tokens,
            age_s=self._age_s(warmth.touched_s),
            shadow_tokens_computed=warmth.computed_tokens,
            shadow_tokens_used=warmth.used_tokens,
            shadow_tokens_pending=warmth.pending_tokens,
            shadow_tokens_wasted=warmth.wasted_tokens,
            shadow_state=warmth.state,
            switch_probability=warmth.switch_probability,
        )

    def _call(self, record: CallRecord) -> CallRow:
        fields = msgspec.structs.asdict(record)
        started_s = fields.pop("started_s")
        return CallRow(**fields, age_s=self._age_s(started_s))

    def _shadow_work(self, record: ShadowRecord) -> ShadowWorkRow:
        fields = msgspec.structs.asdict(record)
        started_s = fields.pop("started_s")
        return ShadowWorkRow(**fields, age_s=max(0.0, self.clock() - started_s))

    def _age_s(self, since_s: float) -> float | None:
        return max(0.0, self.clock() - since_s) if since_s else None
