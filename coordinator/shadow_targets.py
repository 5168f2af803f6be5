"""Which models a session's shadow jobs are for: what was learned, what was said, and the gates.

Learned: next models per (task kind, current model). Said: a router's scores or an agent's plan,
which win over what was learned. Gates: probability, expected saving, models that are switched off
or rest because their shadows are not used, and at last the number of jobs.
Host: coordinator.shadow_flow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.learned import LearnedFile
from policy.hints import with_plan, with_scores
from policy.slack import PREDICTIVE_GATE
from policy.switching import SwitchPrior, SwitchTarget, TargetReason, rank_targets
from policy.use_rate import UseRate, UseRateParams
from policy.vocabulary import Controller

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from configs.schema import ClusterConfig, ShadowConfig
    from coordinator.calls import CallContext
    from coordinator.sessions import Session
    from coordinator.shadow_counters import ShadowCounters


class ShadowTargets:
    """One per application."""

    def __init__(
        self, config: ClusterConfig, counters: ShadowCounters, clock: Callable[[], float]
    ) -> None:
        self._shadow = config.shadow
        self._configured = config.models
        self._counters = counters
        self._clock = clock
        self._models = tuple(key for key, model in config.models.items() if model.shadow)
        self._off: Collection[str] = ()
        self._prior = SwitchPrior()
        path = config.coordinator.learned_path
        self._file = None if path is None else LearnedFile(path, self._prior)
        params = UseRateParams(
            min_share=config.shadow.min_use_share,
            window_tokens=config.shadow.use_window_tokens,
            rest_s=config.shadow.rest_s,
        )
        self._use = {model: UseRate(params) for model in config.models}

    @property
    def models(self) -> tuple[str, ...]:
        """That may be targets."""
        return self._models

    async def start(self) -> None:
        if self._file is not None:
            await self._file.start()

    async def stop(self) -> None:
        if self._file is not None:
            await self._file.stop()

    def reconfigure(self, shadow: ShadowConfig, off: Collection[str]) -> None:
        self._shadow, self._off = shadow, off

    def observe(self, session: Session, call: CallContext) -> None:
        """A call has come: what it says about where sessions like this one go."""
        if call.previous_model is not None:
            self._prior.observe(_kind(session), call.previous_model, call.model)

    def computed(self, model: str, tokens: int) -> None:
        self._use[model].computed(tokens)

    def used(self, model: str, tokens: int) -> None:
        self._use[model].used(tokens)

    def of(self, session: Session, model: str) -> tuple[SwitchTarget, ...]:
        """While the session is on `model`, the likeliest first."""
        shadow = self._shadow
        gate = shadow.min_switch_probability
        if shadow.controller is Controller.PREDICTIVE:
            gate = max(gate, PREDICTIVE_GATE)
        probabilities = self.probabilities(session, model)
        excluded = self._excluded(session, model, probabilities)
        ranked = rank_targets(model, probabilities, shadow.top_k, gate, excluded)
        for left_out in ranked.left_out:
            self._counters.skipped[left_out.reason] += 1
        return ranked.chosen

    def probabilities(self, session: Session, model: str) -> dict[str, float]:
        """Of every model that may be a target, and of `model` itself, to serve the next call."""
        models = tuple(dict.fromkeys((model, *self._models)))
        prior = self._prior.probabilities(_kind(session), model, models)
        if session.hint_plan:
            return with_plan(session.hint_plan, prior)
        return with_scores(session.hint_scores, prior) if session.hint_scores else prior

    def _excluded(
        self, session: Session, current: str, probabilities: Mapping[str, float]
    ) -> dict[str, TargetReason]:
        now_s = self._clock()
        excluded: dict[str, TargetReason] = {}
        for model, probability in probabilities.items():
            if model == current:
                continue
            if model in self._off:
                excluded[model] = TargetReason.SWITCHED_OFF
            elif self._use[model].rests(now_s):
                excluded[model] = TargetReason.RESTING
            elif probability * self._saving_s(session, model) < self._shadow.min_expected_saving_s:
                excluded[model] = TargetReason.NOT_WORTH
        return excluded

    def _saving_s(self, session: Session, model: str) -> float:
        """Prefill time of what the model lacks of the history (estimate)."""
        config = self._configured[model]
        if config.step_time is None:
            return float("inf")  # nobody knows: the gate is for those whose costs are known
        tokens = session.history_bytes / config.bytes_per_token
        missing_tokens = max(0.0, tokens - session.peek(model).warm_tokens)
        return missing_tokens * config.step_time.s_per_token


def _kind(session: Session) -> str:
    return session.task_kind or str(session.kind)
