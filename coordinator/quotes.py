"""What a session's next call would cost on each model now: asks the policy, with our numbers.

Only the session's own record and the instances' queues are looked at, never another session.
Host: coordinator.sessions_api."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.control_shapes import ModelQuote, SessionQuote
from coordinator.errors import NoInstance
from policy.quote import quote

if TYPE_CHECKING:
    from configs.schema import ClusterConfig
    from coordinator.instances import Pair
    from coordinator.node_state import Cluster
    from coordinator.session_view import HistoryLength, SessionViews
    from coordinator.sessions import Session
    from policy.step_time import StepTimeModel


class Quotes:
    def __init__(self, config: ClusterConfig, cluster: Cluster, views: SessionViews) -> None:
        self._models = config.models
        self._cluster = cluster
        self._views = views
        self._step_times: dict[str, StepTimeModel] = {
            name: cluster.step_time(name) for name in config.models
        }
        self._prices = {
            name: None if model.price is None else model.price.to_policy()
            for name, model in config.models.items()
        }

    def of(self, session: Session, new_tokens: int) -> SessionQuote:
        """`new_tokens`: what the next prompt adds to the history. Binds nothing."""
        quotes = [self._quote(session, model, new_tokens) for model in self._models]
        return SessionQuote(session_id=session.id, model=session.current_model, quotes=quotes)

    def _quote(self, session: Session, model: str, new_tokens: int) -> ModelQuote:
        history = self._views.history_of(session, model)
        prompt_tokens = history.tokens + new_tokens
        try:
            pair = self._cluster.placement.place(session, model, prompt_tokens)
        except NoInstance as error:
            return self._unavailable(session, model, prompt_tokens, history, str(error))
        warmth = session.peek(model)
        is_there = pair.prefill.name == warmth.prefill_instance
        priced = quote(
            prompt_tokens=prompt_tokens,
            warm_tokens=min(warmth.warm_tokens, history.tokens) if is_there else 0,
            queue_s=pair.prefill.inflight_tokens * self._cluster.s_per_token(model),
            handoff_s=0.0 if pair.colocated else pair.decode.handoff_s,
            step_time=self._step_times[model],
            price=self._prices[model],
        )
        return ModelQuote(
            model=model,
            is_current=model == session.current_model,
            available=True,
            why_not=None,
            p_instance=pair.prefill.name,
            d_instance=pair.decode.name,
            prompt_tokens=prompt_tokens,
            prompt_exact=history.exact,
            cached_tokens=priced.cached_tokens,
            uncached_tokens=priced.uncached_tokens,
            transfer_tokens=_transferred(session, model, pair, prompt_tokens),
            estimated_ttft_ms=round(priced.ttft_s * 1000, 3),
            input_price=priced.price,
        )

    def _unavailable(
        self, session: Session, model: str, prompt_tokens: int, history: HistoryLength, why: str
    ) -> ModelQuote:
        return ModelQuote(
            model=model,
            is_current=model == session.current_model,
            available=False,
            why_not=why,
            p_instance=None,
            d_instance=None,
            prompt_tokens=prompt_tokens,
            prompt_exact=history.exact,
            cached_tokens=0,
            uncached_tokens=prompt_tokens,
            transfer_tokens=0,
            estimated_ttft_ms=None,
            input_price=None,
        )


def _transferred(session: Session, model: str, pair: Pair, prompt_tokens: int) -> int:
    """What D would pull."""
    if pair.colocated:
        return 0
    warmth = session.peek(model)
    is_there = pair.decode.name == warmth.decode_instance
    return max(0, prompt_tokens - (warmth.decode_tokens if is_there else 0))
