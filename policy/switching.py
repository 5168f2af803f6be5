"""Which models a session may go to next, how likely, and which are worth a shadow job.

The prior counts next models per (task kind, current model), backed by the counts over all kinds,
backed by a uniform guess: a kind that was seen once must not look certain.

Pure. Hosts: coordinator.shadow_flow, bench.sim."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SMOOTHING_CALLS = 4.0
"""How many observed calls the less specific estimate is worth."""
MAX_KINDS = 1024
"""Kinds counted apart; calls of further kinds count for all kinds together. Clients name the
kinds."""


class TargetReason(StrEnum):
    """Why a model is, or is not, a target; also the metric label."""

    CHOSEN = "chosen"
    UNLIKELY = "unlikely"
    BEYOND_TOP_K = "beyond_top_k"
    NOT_WORTH = "not_worth"
    """What its job would save, times its probability, is less than the least."""
    SWITCHED_OFF = "switched_off"
    RESTING = "resting"
    """Its shadows were hardly used lately (policy.use_rate)."""


@dataclass(frozen=True, slots=True)
class SwitchTarget:
    model: str
    probability: float
    reason: TargetReason


@dataclass(frozen=True, slots=True)
class SwitchTargets:
    """Both parts by falling probability."""

    chosen: tuple[SwitchTarget, ...]
    left_out: tuple[SwitchTarget, ...]


@dataclass(frozen=True, slots=True)
class SwitchCounts:
    """How often a session went from one model (outer key) to the next (inner key)."""

    kinds: dict[str, dict[str, dict[str, int]]]
    """Per task kind."""
    all_kinds: dict[str, dict[str, int]]


def smoothed_share(count: float, total: float, prior_share: float, smoothing_calls: float) -> float:
    """Of one model, whose successors were counted `total` times in all."""
    return (count + smoothing_calls * prior_share) / (total + smoothing_calls)


class SwitchPrior:
    """Next-model counts of past calls."""

    __slots__ = ("_all_kinds", "_by_kind", "_kinds", "smoothing_calls")

    def __init__(self, smoothing_calls: float = SMOOTHING_CALLS) -> None:
        if not smoothing_calls > 0:
            raise ValueError(f"smoothing_calls must be > 0, got {smoothing_calls}")
        self.smoothing_calls = smoothing_calls
        self._kinds: set[str] = set()
        self._by_kind: dict[tuple[str, str], Counter[str]] = {}
        self._all_kinds: dict[str, Counter[str]] = {}

    def observe(self, kind: str, current_model: str, next_model: str) -> None:
        """A session of this kind went from one model to the next, which may be the same."""
        self._all_kinds.setdefault(current_model, Counter())[next_model] += 1
        if len(self._kinds) < MAX_KINDS:
            self._kinds.add(kind)
        if kind in self._kinds:
            self._by_kind.setdefault((kind, current_model), Counter())[next_model] += 1

    def probabilities(
        self, kind: str, current_model: str, models: Sequence[str]
    ) -> dict[str, float]:
        """Of each of `models` (the current one among them) to serve the next call; they sum to
        1."""
        uniform = {model: 1 / len(models) for model in models}
        general = self._smoothed(self._all_kinds.get(current_model, Counter()), uniform)
        return self._smoothed(self._by_kind.get((kind, current_model), Counter()), general)

    def counts(self) -> SwitchCounts:
        """Everything learned, for `learn` of another process."""
        kinds: dict[str, dict[str, dict[str, int]]] = {}
        for (kind, current), nexts in self._by_kind.items():
            kinds.setdefault(kind, {})[current] = dict(nexts)
        all_kinds = {current: dict(nexts) for current, nexts in self._all_kinds.items()}
        return SwitchCounts(kinds, all_kinds)

    def learn(self, counts: SwitchCounts) -> None:
        """On top of what is known."""
        for current, nexts in counts.all_kinds.items():
            self._all_kinds.setdefault(current, Counter()).update(nexts)
        for kind, currents in counts.kinds.items():
            if kind not in self._kinds and len(self._kinds) >= MAX_KINDS:
                continue
            self._kinds.add(kind)
            for current, nexts in currents.items():
                self._by_kind.setdefault((kind, current), Counter()).update(nexts)

    def _smoothed(self, counts: Counter[str], prior: Mapping[str, float]) -> dict[str, float]:
        # Models that are not offered any more keep their counts but take no share.
        total = sum(counts[model] for model in prior)
        return {
            model: smoothed_share(counts[model], total, share, self.smoothing_calls)
            for model, share in prior.items()
        }


def rank_targets(
    current_model: str,
    probabilities: Mapping[str, float],
    top_k: int,
    min_probability: float,
    excluded: Mapping[str, TargetReason] = MappingProxyType({}),
) -> SwitchTargets:
    """The models other than the current one, likeliest first; equal ones in the mapping's order.
    One that is known not to come (probability 0) is no target under any gate."""
    others = [item for item in probabilities.items() if item[0] != current_model]
    others.sort(key=lambda item: -item[1])
    chosen: list[SwitchTarget] = []
    left_out: list[SwitchTarget] = []
    for model, probability in others:
        if model in excluded:
            left_out.append(SwitchTarget(model, probability, excluded[model]))
        elif probability < min_probability or probability == 0.0:
            left_out.append(SwitchTarget(model, probability, TargetReason.UNLIKELY))
        elif len(chosen) >= top_k:
            left_out.append(SwitchTarget(model, probability, TargetReason.BEYOND_TOP_K))
        else:
            chosen.append(SwitchTarget(model, probability, TargetReason.CHOSEN))
    return SwitchTargets(tuple(chosen), tuple(left_out))
