"""The approaches of the paper's Table 2 by name, as switches of a simulated run."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from bench.sim.approach import Approach, Dedicated, HostTier
from policy.vocabulary import Controller

if TYPE_CHECKING:
    from bench.study.schema import HostTierConfig, ShadowConfig


class ApproachName(StrEnum):
    NO_SHADOW = "no-shadow"
    HOST_TIER = "host-tier"
    HARVEST = "harvest"
    HARVEST_SLO = "harvest-slo"
    HARVEST_SLO_HOST = "harvest-slo+host"
    PREDICTIVE = "predictive"
    DEDICATED = "dedicated"
    EAGER = "eager"
    ORACLE = "oracle"
    ORACLE_HOST = "oracle+host"


HARVEST_DELTA = 0.1
"""The paper's credit where it pays for every busy iteration."""

_SWITCHES: dict[ApproachName, dict[str, Any]] = {
    ApproachName.NO_SHADOW: {},
    ApproachName.HOST_TIER: {},
    ApproachName.HARVEST: {"controller": Controller.HARVEST, "delta": HARVEST_DELTA},
    ApproachName.HARVEST_SLO: {"controller": Controller.HARVEST_SLO},
    ApproachName.HARVEST_SLO_HOST: {"controller": Controller.HARVEST_SLO},
    ApproachName.PREDICTIVE: {"controller": Controller.PREDICTIVE, "delta": HARVEST_DELTA},
    # Of the two readings, the one that stays below the oracle, as the paper's does: an instance
    # that also serves calls takes load off the others, and passes it.
    ApproachName.DEDICATED: {"dedicated": Dedicated.KV_MOVES},
    ApproachName.EAGER: {"controller": Controller.EAGER},
    ApproachName.ORACLE: {"oracle": True},
    ApproachName.ORACLE_HOST: {"oracle": True},
}
WITH_HOST_TIER = frozenset(
    {ApproachName.HOST_TIER, ApproachName.HARVEST_SLO_HOST, ApproachName.ORACLE_HOST}
)


def switches_of(name: ApproachName, shadow: ShadowConfig, host_tier: HostTierConfig) -> Approach:
    """What the configuration sets wins over the approach's own values."""
    approach = Approach(**_SWITCHES[name])
    given = shadow.model_dump(exclude_none=True)
    if name is not ApproachName.DEDICATED:
        given.pop("dedicated", None)
    if name in WITH_HOST_TIER:
        given["host_tier"] = HostTier(
            bytes_per_gpu=host_tier.gb_per_gpu * 1e9,
            bytes_per_s_per_gpu=host_tier.gb_per_s_per_gpu * 1e9,
        )
    return replace(approach, **given)
