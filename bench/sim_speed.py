"""How fast the simulator is: simulated seconds and events per second of wall time, on one core, by
instances and by load, with every mechanism on.

    python -m bench.sim_speed --save-result --result-dir out/bench [--smoke]

One run is what a study pays for a cell: the rows are made, the events run, the outcome is read. The
first row's world runs once before, so that compiling is not counted."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.sim.approach import Approach, HostTier
from bench.sim.build import RoutedWork, Workload
from bench.sim.cluster import Cluster, ModelPool
from bench.sim.compiled import HAS_NUMBA
from bench.sim.conservation import check
from bench.sim.latency import LatencyModel
from bench.sim.simulation import Simulation
from bench.workloads.lengths import azure_2024
from bench.workloads.routers import markov_route, uniform_switches
from bench.workloads.sessions import draw_sessions
from bench.workloads.traffic import drawn_traffic
from policy.vocabulary import Controller

if TYPE_CHECKING:
    from collections.abc import Sequence

CAPACITY_PER_S = {"Qwen2.5-7B": 17.5, "Llama-3.1-8B": 15.1}
"""Of one colocated instance (test_capacity); a split pool of as many instances gets as much."""
SESSIONS_PER_S = 0.05
"""Per instance."""
SWITCH_PROBABILITY = 0.3
ALL_ON = Approach(controller=Controller.HARVEST_SLO, host_tier=HostTier())


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Two models, with half of the instances each."""

    instances: int
    rho: float
    is_split: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Cell):
    simulated_s: float
    events: int
    shadow_tokens: int
    build_s: float
    run_s: float
    cpu_s: float
    """Of the whole run; more wall than this is another process's."""
    sim_s_per_wall_s: float
    events_per_s: float


CELLS = (
    *(Cell(instances=count, rho=0.7) for count in (2, 8, 16, 32)),
    *(Cell(instances=8, rho=rho) for rho in (0.3, 0.5, 0.9)),
    Cell(instances=8, rho=0.7, is_split=True),
)


def main(argv: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(argv)
    cells, duration_s = (CELLS[:1], 20.0) if options.smoke else (CELLS, 720.0)
    measure(cells[0], 1.0)
    rows = []
    for cell in cells:
        rows.append(measure(cell, duration_s))
        print(_line(rows[-1]), flush=True)  # noqa: T201 (a command's output)
    if options.save_result:
        path = Path(options.result_dir) / "sim_speed.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        result = {"is_compiled": HAS_NUMBA, "rows": [asdict(row) for row in rows]}
        path.write_text(json.dumps(result, indent=2) + "\n")


def measure(cell: Cell, duration_s: float) -> Row:
    cluster, workload = _cluster(cell), _workload(cell, duration_s)
    started_s, cpu_s = time.perf_counter(), time.process_time()
    simulation = Simulation(cluster, workload, ALL_ON)
    built_s = time.perf_counter()
    outcome = simulation.run()
    ended_s, cpu_s = time.perf_counter(), time.process_time() - cpu_s
    check(simulation)
    return Row(
        **asdict(cell),
        simulated_s=round(outcome.end_s, 3),
        events=outcome.events,
        shadow_tokens=int(outcome.instances.shadow_computed_tokens.sum()),
        build_s=round(built_s - started_s, 4),
        run_s=round(ended_s - built_s, 4),
        cpu_s=round(cpu_s, 4),
        sim_s_per_wall_s=round(outcome.end_s / (ended_s - started_s), 1),
        events_per_s=round(outcome.events / (ended_s - built_s)),
    )


def _cluster(cell: Cell) -> Cluster:
    each = cell.instances // 2
    decode = max(1, each // 4)
    counts = {"prefill": each - decode, "decode": decode} if cell.is_split else {"colocated": each}
    return Cluster(
        pools=tuple(ModelPool(latency=LatencyModel(name), **counts) for name in CAPACITY_PER_S)
    )


def _workload(cell: Cell, duration_s: float) -> Workload:
    rng = np.random.default_rng(0)
    each = cell.instances // 2
    normal = tuple(
        drawn_traffic(azure_2024("conversation"), cell.rho * each * capacity, duration_s, rng)
        for capacity in CAPACITY_PER_S.values()
    )
    sessions = draw_sessions("xRouteBench", SESSIONS_PER_S * cell.instances, duration_s, rng)
    chain = uniform_switches(2, SWITCH_PROBABILITY)
    work = tuple(RoutedWork(s, markov_route(len(s.calls), chain, rng)) for s in sessions)
    return Workload(normal=normal, sessions=work)


def _line(row: Row) -> str:
    kind = "split    " if row.is_split else "colocated"
    return (
        f"{row.instances:3} {kind} rho {row.rho:.1f}  {row.sim_s_per_wall_s:9.1f} simulated s/s  "
        f"{row.events_per_s:9} events/s  build {row.build_s:6.3f} s  run {row.run_s:7.3f} s  "
        f"cpu {row.cpu_s:7.3f} s"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--smoke", action="store_true", help="one short run, to see that it runs")
    parser.add_argument("--save-result", action="store_true")
    parser.add_argument("--result-dir", default="out/bench")
    return parser


if __name__ == "__main__":
    main()
