"""What is written down about a call when it begins and when it has ended: its record, the session's
warmth, the metrics. Host: coordinator.pd_flow."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from coordinator.calls import CallContext
from coordinator.sessions import CallRecord
from coordinator.slo import slo_of
from policy.hints import advanced
from policy.vocabulary import RequestClass, Role
from policy.warmth import HeldPrefix, after_call, shadow_tokens_used, stopped_segment_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from configs.schema import ModelConfig
    from coordinator.call_body import ClientBody
    from coordinator.instances import Pair
    from coordinator.metrics import Metrics, Outcome
    from coordinator.sessions import Session
    from coordinator.slo import SloWish
    from coordinator.sse import Usage

_WEIGHT_OF_NEWEST = 0.2
"""In the running mean of bytes per token: prompts of one model differ by kind, not by call."""


class CallBook:
    """One per application."""

    def __init__(
        self, models: Mapping[str, ModelConfig], metrics: Metrics, clock: Callable[[], float]
    ) -> None:
        self._models = models
        self._metrics = metrics
        self._clock = clock
        self._bytes_per_token = {name: model.bytes_per_token for name, model in models.items()}
        self._candidates = sum(model.shadow for model in models.values())

    def begin(
        self, session: Session, body: ClientBody, model: str, started_s: float, wish: SloWish
    ) -> CallContext:
        """Counts the call in its session, before any engine hears of it."""
        estimate = self._prompt_tokens(session, model, body.prompt_bytes)
        session.calls_total += 1
        session.active_calls += 1
        session.history_bytes = body.prompt_bytes
        call = CallContext(
            kind=body.kind,
            number=session.calls_total,
            model=model,
            previous_model=session.current_model,
            request_class=RequestClass.NORMAL,
            stream=body.stream,
            body_fields=body.fields,
            started_s=started_s,
            prompt_bytes=body.prompt_bytes,
            prompt_tokens_estimate=estimate,
        )
        # Before the flows hear of it: a shadow that is superseded now still counts if it was hit.
        warmth = session.warmth_of(model)
        call.own_tokens_before = warmth.own_tokens
        call.finished_shadow_tokens_before = warmth.shadow_tokens
        call.shadow_tokens_before = max(
            warmth.shadow_tokens, warmth.running_tokens, warmth.stopped_tokens
        )
        self._follow_hint(session, model)
        session.switches += call.is_switch
        session.current_model = model
        call.request_class = self._class_of(session)
        call.slo = slo_of(self._models[model], call.request_class, wish)
        call.record = CallRecord(
            call=call.number, model=model, is_switch=call.is_switch, started_s=started_s
        )
        session.record(call.record)
        self._metrics.calls_in_flight += 1
        return call

    def tokens_of(self, model: str, text_bytes: float) -> int:
        """Estimate, from what prompts of the model were like so far."""
        return int(text_bytes / self._bytes_per_token[model]) + 1

    def _prompt_tokens(self, session: Session, model: str, prompt_bytes: int) -> int:
        """Estimate; of a prompt that grew, only what is new has to be guessed."""
        known_tokens = session.known_tokens(model)
        new_bytes = prompt_bytes - session.history_bytes
        if known_tokens is None or new_bytes < 0:
            return self.tokens_of(model, prompt_bytes)
        return known_tokens + self.tokens_of(model, new_bytes)

    def placed(self, session: Session, call: CallContext, pair: Pair) -> None:
        """Another instance than the sticky one holds nothing of the session, as far as we know."""
        call.record.p_instance, call.record.d_instance = pair.prefill.name, pair.decode.name
        call.is_decode_alone = pair.prefill.role is Role.DECODE
        warmth = session.warmth_of(call.model)
        if call.is_decode_alone and warmth.decode_instance == pair.decode.name:
            call.own_tokens_before = warmth.decode_own_tokens
            call.shadow_tokens_before = warmth.decode_tokens
        elif warmth.prefill_instance != pair.prefill.name:
            call.own_tokens_before = call.shadow_tokens_before = 0
            call.finished_shadow_tokens_before = 0

    def first_byte(self, call: CallContext) -> None:
        ttft_s = self._clock() - call.started_s
        call.record.ttft_ms = round(ttft_s * 1000, 3)
        self._metrics.first_byte(call, ttft_s)
        call.trace.event("first byte")

    def usage(self, call: CallContext, usage: Usage, cached_tokens: int | None) -> None:
        """The engine's counts; P's hit count, where there was a P leg, is the true one."""
        call.prompt_tokens = usage.prompt_tokens
        call.cached_tokens = usage.cached_tokens if cached_tokens is None else cached_tokens
        call.output_tokens = usage.completion_tokens

    def end(self, session: Session, call: CallContext, outcome: Outcome, error: str | None) -> None:
        record = call.record
        record.e2el_ms = round((self._clock() - call.started_s) * 1000, 3)
        record.prompt_tokens = call.prompt_tokens
        record.cached_tokens = call.cached_tokens
        record.output_tokens = call.output_tokens
        record.error = error
        session.active_calls -= 1
        if call.prompt_tokens is not None:
            self._learn(call, call.prompt_tokens)
            answer_bytes = (call.output_tokens or 0) * self._bytes_per_token[call.model]
            session.history_bytes += int(answer_bytes)
            self._warm(session, call, call.prompt_tokens)
        self._metrics.calls_in_flight -= 1
        self._metrics.call_ended(call, outcome, record.shadow_tokens)

    def _follow_hint(self, session: Session, model: str) -> None:
        if session.hint_plan or session.hint_scores:
            plan, end = advanced(session.hint_scores, session.hint_plan, model)
            session.hint({}, list(plan))
            self._metrics.hint_ended(end)

    def _class_of(self, session: Session) -> RequestClass:
        """A session nobody named is normal traffic until it switches: any client makes one."""
        known = session.identified or session.switches > 0
        is_routed = known and session.shadow_enabled and self._candidates >= 2
        return RequestClass.ROUTED if is_routed else RequestClass.NORMAL

    def _learn(self, call: CallContext, prompt_tokens: int) -> None:
        if prompt_tokens < 64:
            return  # the template's own tokens would dominate
        old = self._bytes_per_token[call.model]
        # Measured, and not told by how far the estimate was out: calls that run at once all began
        # with the same one, and would correct it as often as there are calls, to infinity.
        seen = call.prompt_bytes / prompt_tokens
        self._bytes_per_token[call.model] = old + _WEIGHT_OF_NEWEST * (seen - old)

    def _warm(self, session: Session, call: CallContext, prompt_tokens: int) -> None:
        record, warmth = call.record, session.warmth_of(call.model)
        block_size = self._models[call.model].block_size
        warmth.decode_instance = record.d_instance
        warmth.touched_s = self._clock()
        decoded = after_call(prompt_tokens, call.output_tokens or 0, block_size)
        warmth.decode_own_tokens = warmth.decode_tokens = decoded.own_tokens
        held = HeldPrefix(
            own_tokens=call.own_tokens_before, shadow_tokens=call.shadow_tokens_before
        )
        cached_tokens = call.cached_tokens or 0
        used_tokens = record.shadow_tokens = shadow_tokens_used(held, cached_tokens)
        warmth.used_tokens += used_tokens
        if call.is_decode_alone:
            # P holds what it held before; what it pushed to D has been used now, and counts once.
            seen_tokens = min(warmth.shadow_tokens, cached_tokens)
            warmth.own_tokens = max(warmth.own_tokens, seen_tokens)
            return
        finished = replace(held, shadow_tokens=call.finished_shadow_tokens_before)
        call.stopped_segment_tokens = stopped_segment_tokens(
            finished, call.shadow_tokens_before, cached_tokens
        )
        warmth.computed_tokens += call.stopped_segment_tokens
        warmth.stopped_tokens = 0
        # A P leg generates one token whatever D goes on to write.
        is_one = record.p_instance == record.d_instance
        output_tokens = (call.output_tokens or 0) if is_one else 1
        warmth.prefill_instance = record.p_instance
        warmth.own_tokens = after_call(prompt_tokens, output_tokens, block_size).own_tokens
        warmth.shadow_tokens = 0
