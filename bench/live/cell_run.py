"""One cell from top to bottom: controller, empty caches, coordinator, traffic, facts."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp

from bench.live.energy import EnergyMeter, used_joules
from bench.live.engine_facts import read_traces
from bench.live.plan import plan_normal, plan_sessions
from bench.live.records import CellFacts, CellResult
from bench.live.traffic import Traffic
from bench.overhead_systems import cpu_s

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.live.cells import Cell
    from bench.live.engines import Engines
    from bench.live.records import Calibration, RecordedSession
    from bench.live.settings import Settings
    from bench.live.traffic import Played


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all cells of a run share."""

    engines: Engines
    settings: Settings
    calibration: Calibration
    meter: EnergyMeter


def run_cell(bench: Bench, cell: Cell, recorded: Mapping[str, RecordedSession]) -> CellResult:
    """Raises LiveError or ClusterStartError; a failed call is a row, not an error."""
    started_unix_s, started_s = time.time(), time.perf_counter()
    bench.engines.prepare(cell.controller, cell.name)
    changes = [] if cell.pushes else ["shadow.pushes=false"]
    with bench.engines.coordinator(cell.controller, bench.calibration, changes) as (url, pid):
        cpu_before_s, joules = cpu_s(pid), bench.meter.joules()
        played = asyncio.run(_play(bench, cell, url, recorded))
        energy_j = used_joules(joules, bench.meter.joules())
        coordinator_cpu_s = cpu_s(pid) - cpu_before_s
    bench.engines.check()
    facts = CellFacts(
        load=cell.load,
        controller=cell.controller.value,
        pushes=cell.pushes,
        repeat=cell.repeat,
        started_unix_s=round(started_unix_s, 1),
        duration_s=round(played.duration_s, 2),
        whole_s=round(time.perf_counter() - started_s, 2),
        client_cpu_share=round(played.client_cpu_s / played.duration_s, 4),
        coordinator_cpu_share=round(coordinator_cpu_s / played.duration_s, 4),
        shadow_tokens_computed=played.shadow_tokens_computed,
        shadow_tokens_used=played.shadow_tokens_used,
        energy_j=energy_j,
        engines=read_traces(bench.engines.close_traces()),
    )
    return CellResult(facts=facts, rows=tuple(played.rows))


async def _play(
    bench: Bench, cell: Cell, url: str, recorded: Mapping[str, RecordedSession]
) -> Played:
    capacity = {name: one.capacity_per_s for name, one in bench.calibration.models.items()}
    normal = plan_normal(cell, capacity, bench.settings)
    sessions = plan_sessions(cell.repeat, bench.engines.models, bench.settings)
    async with client_session() as http:
        traffic = Traffic(
            http=http,
            base_url=url,
            token=f"live-{cell.name}",
            settings=bench.settings,
            recorded=recorded,
            calibration=bench.calibration,
        )
        return await traffic.play(normal, sessions)


def client_session() -> aiohttp.ClientSession:
    """Open loop: no request waits for a connection of another."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
    )
