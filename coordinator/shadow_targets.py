"""Which models a session's shadow jobs are for: what was learned, what was said, and the gates.

Learned: next models per (task kind, current model). Said: a router's scores or an agent's plan,
which win over what was learned. Host: coordinator.shadow_flow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from policy.hints import with_plan, with_scores
from policy.slack import PREDICTIVE_GATE
from policy.switching import SwitchPrior, SwitchTarget, rank_targets
from policy.vocabulary import Controller

if TYPE_CHECKING:
    from configs.schema import ClusterConfig
    from coordinator.calls import CallContext
    from coordinator.sessions import Session
    from coordinator.shadow_counters import ShadowCounters


class ShadowTargets:
    """One per application."""

    def __init__(self, config: ClusterConfig, counters: ShadowCounters) -> None:
        self._config = config
        self._counters = counters
        self._models = tuple(key for key, model in config.models.items() if model.shadow)
        self._prior = SwitchPrior()

    @property
    def models(self) -> tuple[str, ...]:
        """That may be targets."""
        return self._models

    def observe(self, session: Session, call: CallContext) -> None:
        """A call has come: what it says about where sessions like this one go."""
        if call.previous_model is not None:
            self._prior.observe(str(session.kind), call.previous_model, call.model)

    def of(self, session: Session, model: str) -> tuple[SwitchTarget, ...]:
        """While the session is on `model`, the likeliest first."""
        shadow = self._config.shadow
        gate = shadow.min_switch_probability
        if shadow.controller is Controller.PREDICTIVE:
            gate = max(gate, PREDICTIVE_GATE)
        ranked = rank_targets(model, self.probabilities(session, model), shadow.top_k, gate)
        for left_out in ranked.left_out:
            self._counters.skipped[left_out.reason] += 1
        return ranked.chosen

    def probabilities(self, session: Session, model: str) -> dict[str, float]:
        """Of every model that may be a target, and of `model` itself, to serve the next call."""
        models = tuple(dict.fromkeys((model, *self._models)))
        prior = self._prior.probabilities(str(session.kind), model, models)
        if session.hint_plan:
            return with_plan(session.hint_plan, prior)
        return with_scores(session.hint_scores, prior) if session.hint_scores else prior
