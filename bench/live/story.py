"""The live benchmark from top to bottom: READ THIS FIRST.

Engines up -> calibrate once -> per cell: controller, empty caches, new coordinator, traffic -> rows
on disk -> table, JSON, picture. A cell that is on disk is never run again; everything stops by
itself, and whatever ends a run leaves the finished cells."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from bench.demo.dtype import without_emulation
from bench.demo.place import CPUINFO, conditions, processor
from bench.live.calibrate import Calibrator
from bench.live.cell_run import Bench, client_session, run_cell
from bench.live.energy import EnergyMeter
from bench.live.engines import Engines
from bench.live.errors import LiveError
from bench.live.pd_report import pd_document, pd_table
from bench.live.plan import plan_sessions
from bench.live.progress import Progress
from bench.live.recording import record_sessions
from bench.live.report import Run, compared, document, verdict_line
from bench.live.store import Store, run_hash
from bench.live.table import live_table
from bench.live.verdicts import verdicts
from configs.load import effective_yaml, load_config
from policy.slack import cap_s
from policy.vocabulary import Controller

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rich.console import Console

    from bench.live.cells import Cell
    from bench.live.options import Options
    from bench.live.records import Calibration, CellResult, RecordedSession
    from bench.live.settings import Settings
    from configs.schema import ClusterConfig


def run_live(options: Options, console: Console) -> dict[str, Any] | None:
    """The result document, None without a finished cell. Raises LiveError, CallFailed,
    ResultsMixed, ClusterStartError."""
    options.folder.mkdir(parents=True, exist_ok=True)
    path = without_emulation(options.config, options.folder, CPUINFO)
    config = load_config(path)
    digest = run_hash(options.settings, effective_yaml(config), processor(CPUINFO))
    store = Store(options.folder, digest, fresh=options.fresh)
    progress = Progress(console, options)
    todo = [cell for cell in options.chosen if store.cell(cell) is None]
    for line in conditions(config, os.getpid()).lines():
        progress.say(line)
    progress.plan(todo)
    if todo:
        with Engines(
            path,
            options.folder / "run",
            options.settings.prefill_budget_tokens,
            deltas_of(options.config),
        ) as engines:
            progress.say(f"engines are up after {progress.elapsed_s():.0f} s")
            _measure(engines, store, todo, progress)
    return _reported(options, config, store, progress)


def _measure(engines: Engines, store: Store, todo: Sequence[Cell], progress: Progress) -> None:
    settings = progress.options.settings
    calibration = store.calibration()
    if calibration is None:
        calibration = _calibrated(engines, settings)
        store.keep_calibration(calibration)
    progress.calibrated(calibration)
    bench = Bench(engines=engines, settings=settings, calibration=calibration, meter=EnergyMeter())
    for number, cell in enumerate(todo, start=1):
        if not progress.has_time_for_one_more():
            progress.say(f"{len(todo) - number + 1} cells are left for the next run: time is over")
            return
        result = _run_twice(bench, store, cell, progress)
        store.keep_cell(cell, result)
        progress.finished(cell, result, len(todo) - number)


def _run_twice(bench: Bench, store: Store, cell: Cell, progress: Progress) -> CellResult:
    """An engine that died or would not obey is started anew, once per cell."""
    try:
        return run_cell(bench, cell, _sessions(bench, store, cell.repeat, progress))
    except LiveError as error:
        if bench.engines.attached:
            raise
        progress.say(f"{cell.name}: {error}; the engines are started again")
        bench.engines.restart()
        return run_cell(bench, cell, _sessions(bench, store, cell.repeat, progress))


def _calibrated(engines: Engines, settings: Settings) -> Calibration:
    async def measure(url: str) -> Calibration:
        async with client_session() as http:
            return await Calibrator(http, url, settings).measure(engines.models)

    engines.empty()
    with engines.coordinator(Controller.OFF, None) as (url, _):
        return asyncio.run(measure(url))


def _sessions(
    bench: Bench, store: Store, repeat: int, progress: Progress
) -> Mapping[str, RecordedSession]:
    """What the models answer in this repeat's sessions: from disk, or recorded now."""
    known = store.sessions(repeat)
    if known is not None:
        return known
    planned = plan_sessions(repeat, bench.engines.models, bench.settings)

    async def record(url: str) -> list[RecordedSession]:
        async with client_session() as http:
            return await record_sessions(http, url, planned, bench.settings)

    with progress.recording(repeat, len(planned)):
        bench.engines.empty()
        with bench.engines.coordinator(Controller.OFF, bench.calibration) as (url, _):
            recorded = asyncio.run(record(url))
    store.keep_sessions(repeat, recorded)
    return {session.key: session for session in recorded}


def _reported(
    options: Options, config: ClusterConfig, store: Store, progress: Progress
) -> dict[str, Any] | None:
    """From every finished cell of the matrix, whichever run it came from."""
    found = [result for cell in options.wanted if (result := store.cell(cell)) is not None]
    calibration = store.calibration()
    if not found or calibration is None:
        progress.say("no finished cell: nothing to report")
        return None
    run = Run(
        settings=options.settings,
        calibration=calibration,
        cells=found,
        wanted=options.wanted,
        cap_ms=1e3 * longest_capped_s(config, calibration),
        conditions=conditions(config, os.getpid()).to_json(),
    )
    if options.topology == "pd":
        told = pd_document(run)
        progress.show(pd_table(told["cells"], _title(run, "P and D apart")))
        progress.say(f"checks: {told['checks']}")
        return told
    told = document(run)
    progress.show(live_table(told["cells"], _title(run, "colocated")))
    for verdict in verdicts(compared(run)):
        progress.say(verdict_line(verdict))
    progress.say(f"checks: {told['checks']}")
    return told


def deltas_of(path: Path) -> dict[Controller, float]:
    """What the configuration as the user wrote it gives each controller: in one with every default
    filled in, the default of its own controller would be that of all."""
    return {
        controller: load_config(path, [f"shadow.controller={controller.value}"]).shadow.delta
        for controller in Controller
    }


def longest_capped_s(config: ClusterConfig, calibration: Calibration) -> float:
    """Of all engines: an idle one has the longer cap."""
    shadow = config.shadow
    return max(
        cap_s(shadow.beta, model.tpot_slo_s, shadow.iteration_cap_s, prefill=False, idle=True)
        for model in calibration.models.values()
    )


def _title(run: Run, topology: str) -> str:
    done = f"{len(run.cells)} of {len(run.wanted)} cells"
    return f"live, {topology}: {done}, mean ± half of the 95% interval"
