"""The approaches of Table 2 as switches."""

from __future__ import annotations

import pytest

from bench.sim.approach import Dedicated
from bench.study.approaches import WITH_HOST_TIER, ApproachName, switches_of
from bench.study.schema import HostTierConfig, ShadowConfig
from policy.vocabulary import Controller

TIER = HostTierConfig(gb_per_gpu=16, gb_per_s_per_gpu=8)


@pytest.mark.parametrize("name", list(ApproachName))
def test_every_approach_has_switches_and_the_tier_that_its_name_says(name: ApproachName) -> None:
    approach = switches_of(name, ShadowConfig(), TIER)
    assert (approach.host_tier is not None) == (name in WITH_HOST_TIER)
    if approach.host_tier is not None:
        assert approach.host_tier.bytes_per_gpu == 16e9
    assert approach.has_shadows == (
        name
        not in (
            ApproachName.NO_SHADOW,
            ApproachName.HOST_TIER,
            ApproachName.ORACLE,
            ApproachName.ORACLE_HOST,
        )
    )


def test_no_two_approaches_are_the_same() -> None:
    switches = [switches_of(name, ShadowConfig(), TIER) for name in ApproachName]
    assert all(switches.count(one) == 1 for one in switches)


def test_the_one_credit_of_the_paper_is_larger() -> None:
    for name, delta in ((ApproachName.HARVEST, 0.1), (ApproachName.HARVEST_SLO, 0.025)):
        assert switches_of(name, ShadowConfig(), TIER).delta == delta


def test_what_the_file_sets_wins_and_a_dedicated_reading_stays_with_its_approach() -> None:
    shadow = ShadowConfig(beta=1.0, dedicated=Dedicated.CALL_RUNS_THERE)
    harvest = switches_of(ApproachName.HARVEST, shadow, TIER)
    assert (harvest.beta, harvest.delta, harvest.dedicated) == (1.0, 0.1, None)
    assert harvest.controller is Controller.HARVEST
    assert switches_of(ApproachName.DEDICATED, shadow, TIER).dedicated is Dedicated.CALL_RUNS_THERE
