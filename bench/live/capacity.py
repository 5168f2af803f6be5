"""The capacity of an engine, as the paper has it (appendix D.1): the highest rate of normal
requests at which at least 90% of them still meet both SLOs.

Rising rates are tried, all models at once because they share the machine in the cells too; between
the last rate that holds and the first that does not, attainment is taken to fall in a line."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from bench.live.cells import Cell
from bench.live.picks import meets_slos
from bench.live.plan import plan_normal
from bench.live.records import TriedRate
from bench.live.traffic import Traffic
from policy.vocabulary import Controller

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import aiohttp

    from bench.live.records import Calibration
    from bench.live.settings import Settings

ATTAINMENT = 0.9


async def try_rates(
    http: aiohttp.ClientSession, base_url: str, start: Calibration, settings: Settings
) -> dict[str, list[TriedRate]]:
    """`start` holds the SLOs, and the saturated rates that the tried ones are shares of."""
    saturated = {name: model.saturated_per_s for name, model in start.models.items()}
    tried: dict[str, list[TriedRate]] = {name: [] for name in saturated}
    for share in settings.capacity_shares:
        attained = await _attained(http, base_url, start, share, settings)
        for name, value in attained.items():
            rate = TriedRate(per_s=share * saturated[name], attainment=value)
            tried[name].append(rate)
        if all(any(one.attainment < ATTAINMENT for one in rates) for rates in tried.values()):
            break
    return tried


async def _attained(
    http: aiohttp.ClientSession,
    base_url: str,
    start: Calibration,
    share: float,
    settings: Settings,
) -> Mapping[str, float]:
    short = replace(settings, window_s=settings.capacity_test_s)
    saturated = {name: model.saturated_per_s for name, model in start.models.items()}
    plan = plan_normal(Cell(load=share, controller=Controller.OFF, repeat=0), saturated, short)
    traffic = Traffic(
        http=http,
        base_url=base_url,
        token="live-capacity",
        settings=short,
        recorded={},
        calibration=start,
    )
    played = await traffic.play(plan, [])
    met: dict[str, list[bool]] = {name: [] for name in saturated}
    for row in played.rows:
        met[row.model].append(meets_slos(row, start))
    return {name: sum(found) / len(found) if found else 1.0 for name, found in met.items()}


def capacity_per_s(tried: Sequence[TriedRate]) -> float:
    """If not even the lowest rate holds, that one: nothing lower was tried."""
    assert tried, "no rate was tried"
    if tried[0].attainment < ATTAINMENT:
        return tried[0].per_s
    for held, failed in pairwise(tried):
        if failed.attainment < ATTAINMENT:
            fall = held.attainment - failed.attainment
            reach = (held.attainment - ATTAINMENT) / fall
            return held.per_s + reach * (failed.per_s - held.per_s)
    return tried[-1].per_s
