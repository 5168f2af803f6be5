"""What a router or an agent says about a session's next models, and what follows for the next call.

Scores are about the next call and end with it. A plan names the models of the next calls in order:
each call takes its own model off, and one that goes elsewhere ends the plan, because whoever made
it did not foresee that.

Pure. Hosts: coordinator.sessions holds a hint, coordinator.shadow_flow follows it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PLAN_STEP_SHARE = 0.5
"""A model that the plan needs one step later counts for half: its history is not complete yet, and
the work for the step before is due first."""
PROBABILITY_TOLERANCE = 1e-6
"""By which probabilities may sum to more than 1: they were rounded."""


class HintEnd(StrEnum):
    """What a call made of the hint before it; also the metric label."""

    FOLLOWED = "followed"
    """It went to the model of the plan, or to the likeliest of the scores."""
    NOT_FOLLOWED = "not_followed"


class Advanced(NamedTuple):
    """The plan that is left (empty: none), and how the hint did."""

    plan: tuple[str, ...]
    end: HintEnd


def advanced(scores: Mapping[str, float], plan: Sequence[str], model: str) -> Advanced:
    """After a call that went to `model`; one of the two is given."""
    if plan:
        is_followed = plan[0] == model
        left = tuple(plan[1:]) if is_followed else ()
    else:
        is_followed = model in scores and scores[model] >= max(scores.values())
        left = ()
    return Advanced(left, HintEnd.FOLLOWED if is_followed else HintEnd.NOT_FOLLOWED)


def with_scores(scores: Mapping[str, float], prior: Mapping[str, float]) -> dict[str, float]:
    """The scores as they are; models that they leave out share the rest as the prior has it."""
    rest = max(0.0, 1.0 - sum(scores.values()))
    prior_rest = sum(share for model, share in prior.items() if model not in scores)
    each = rest / prior_rest if prior_rest else 0.0
    return {
        model: scores[model] if model in scores else each * share for model, share in prior.items()
    }


def with_plan(plan: Sequence[str], prior: Mapping[str, float]) -> dict[str, float]:
    """By the step at which the plan first needs a model; 0 for those that it never needs."""
    return {
        model: PLAN_STEP_SHARE ** plan.index(model) if model in plan else 0.0 for model in prior
    }
