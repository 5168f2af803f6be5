"""The prior over next models, and which of them become targets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.switching import (
    MAX_KINDS,
    SMOOTHING_CALLS,
    SwitchPrior,
    SwitchTarget,
    TargetReason,
    rank_targets,
)

MODELS = ["a", "b", "c"]


def test_without_observations_every_model_is_equally_likely() -> None:
    assert SwitchPrior().probabilities("code", "a", ["a", "b"]) == {"a": 0.5, "b": 0.5}


def test_one_observation_is_not_certainty() -> None:
    prior = SwitchPrior()
    prior.observe("code", "a", "b")
    general = (1 + SMOOTHING_CALLS / 2) / (1 + SMOOTHING_CALLS)
    expected = (1 + SMOOTHING_CALLS * general) / (1 + SMOOTHING_CALLS)
    assert prior.probabilities("code", "a", ["a", "b"])["b"] == pytest.approx(expected)
    assert expected < 0.75


def test_many_observations_are_followed_per_kind_and_per_current_model() -> None:
    prior = SwitchPrior()
    for _ in range(1000):
        prior.observe("code", "a", "b")
        prior.observe("code", "b", "b")
        prior.observe("chat", "a", "a")
    assert prior.probabilities("code", "a", MODELS)["b"] > 0.99
    assert prior.probabilities("code", "b", MODELS)["b"] > 0.99
    assert prior.probabilities("chat", "a", MODELS)["a"] > 0.99


def test_an_unseen_kind_takes_the_counts_of_all_kinds() -> None:
    prior = SwitchPrior()
    for _ in range(1000):
        prior.observe("code", "a", "c")
    assert prior.probabilities("new", "a", MODELS)["c"] > 0.99
    assert prior.probabilities("new", "b", MODELS)["c"] == pytest.approx(1 / 3)


def test_a_model_that_is_not_offered_takes_no_share() -> None:
    prior = SwitchPrior()
    for _ in range(1000):
        prior.observe("code", "a", "gone")
    assert prior.probabilities("code", "a", ["a", "b"]) == {"a": 0.5, "b": 0.5}


def test_a_client_that_invents_kinds_does_not_grow_the_prior_without_limit() -> None:
    prior = SwitchPrior()
    for index in range(MAX_KINDS + 100):
        prior.observe(f"kind-{index}", "a", "b")
    late = prior.probabilities(f"kind-{MAX_KINDS + 1}", "a", ["a", "b"])
    assert late == prior.probabilities("never seen", "a", ["a", "b"])
    assert late != prior.probabilities("kind-0", "a", ["a", "b"])


@pytest.mark.parametrize("smoothing_calls", [0.0, -1.0, float("nan")])
def test_smoothing_must_be_positive(smoothing_calls: float) -> None:
    with pytest.raises(ValueError, match="smoothing_calls must be > 0"):
        SwitchPrior(smoothing_calls)


def test_what_was_learned_can_be_carried_on() -> None:
    first, second = SwitchPrior(), SwitchPrior()
    first.observe("code", "a", "b")
    first.observe("chat", "b", "c")
    second.observe("code", "a", "c")
    second.learn(first.counts())
    both = SwitchPrior()
    for observation in (("code", "a", "b"), ("chat", "b", "c"), ("code", "a", "c")):
        both.observe(*observation)
    for kind, current in (("code", "a"), ("chat", "b"), ("new", "a")):
        assert second.probabilities(kind, current, MODELS) == both.probabilities(
            kind, current, MODELS
        )


def test_learning_is_bounded_in_kinds_as_observing_is() -> None:
    full, other = SwitchPrior(), SwitchPrior()
    for index in range(MAX_KINDS):
        full.observe(f"kind-{index}", "a", "b")
    other.observe("late", "a", "c")
    full.learn(other.counts())
    assert len(full.counts().kinds) == MAX_KINDS
    assert full.counts().all_kinds["a"]["c"] == 1


def test_excluded_models_are_left_out_with_their_reason_and_take_no_place() -> None:
    probabilities = {"a": 0.3, "b": 0.4, "c": 0.3}
    targets = rank_targets("a", probabilities, 1, 0.0, {"b": TargetReason.RESTING})
    assert [target.model for target in targets.chosen] == ["c"]
    assert targets.left_out == (SwitchTarget("b", 0.4, TargetReason.RESTING),)


def test_a_model_that_is_known_not_to_come_is_no_target() -> None:
    targets = rank_targets("a", {"a": 0.0, "b": 1.0, "c": 0.0}, 3, 0.0)
    assert [target.model for target in targets.chosen] == ["b"]
    assert targets.left_out == (SwitchTarget("c", 0.0, TargetReason.UNLIKELY),)


@given(
    seen=st.lists(
        st.tuples(st.sampled_from(["x", "y"]), *[st.sampled_from([*MODELS, "gone"])] * 2)
    ),
    kind=st.sampled_from(["x", "y", "z"]),
    current=st.sampled_from(MODELS),
)
def test_probabilities_sum_to_one_and_none_is_zero(
    seen: list[tuple[str, str, str]], kind: str, current: str
) -> None:
    prior = SwitchPrior()
    for observation in seen:
        prior.observe(*observation)
    probabilities = prior.probabilities(kind, current, MODELS)
    assert sum(probabilities.values()) == pytest.approx(1)
    assert all(probability > 0 for probability in probabilities.values())


@pytest.mark.parametrize(
    ("top_k", "min_probability", "chosen", "left_out"),
    [
        (
            3,
            0.0,
            [("b", 0.4), ("d", 0.2), ("c", 0.1)],
            [],
        ),
        (
            1,
            0.0,
            [("b", 0.4)],
            [("d", 0.2, TargetReason.BEYOND_TOP_K), ("c", 0.1, TargetReason.BEYOND_TOP_K)],
        ),
        (
            3,
            0.2,
            [("b", 0.4), ("d", 0.2)],
            [("c", 0.1, TargetReason.UNLIKELY)],
        ),
        (
            1,
            0.2,
            [("b", 0.4)],
            [("d", 0.2, TargetReason.BEYOND_TOP_K), ("c", 0.1, TargetReason.UNLIKELY)],
        ),
    ],
)
def test_targets_are_ranked_and_gated(
    top_k: int,
    min_probability: float,
    chosen: list[tuple[str, float]],
    left_out: list[tuple[str, float, TargetReason]],
) -> None:
    probabilities = {"a": 0.3, "b": 0.4, "c": 0.1, "d": 0.2}
    targets = rank_targets("a", probabilities, top_k, min_probability)
    assert targets.chosen == tuple(SwitchTarget(*item, TargetReason.CHOSEN) for item in chosen)
    assert targets.left_out == tuple(SwitchTarget(*item) for item in left_out)


def test_equally_likely_targets_keep_the_configurations_order() -> None:
    targets = rank_targets("b", {"z": 0.3, "b": 0.4, "a": 0.3}, 2, 0.0)
    assert [target.model for target in targets.chosen] == ["z", "a"]
