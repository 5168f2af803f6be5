"""Runs a cluster on a workload under an approach, and hands back what happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.sim.approach import NO_SHADOW
from bench.sim.build import build_world
from bench.sim.compiled import HAS_NUMBA, compiled
from bench.sim.events import run_until
from bench.sim.outcome import outcome
from bench.sim.rows import NEVER_S
from bench.sim.session_heap import push_session
from bench.sim.world import as_rows

if TYPE_CHECKING:
    from bench.sim.approach import Approach
    from bench.sim.build import Workload
    from bench.sim.cluster import Cluster
    from bench.sim.outcome import Outcome
    from bench.sim.world import World


class Simulation:
    """`run` may be called again with a later time; `world` holds the state in between, as records
    where it runs compiled."""

    def __init__(
        self,
        cluster: Cluster,
        workload: Workload,
        approach: Approach = NO_SHADOW,
        *,
        with_numba: bool = HAS_NUMBA,
    ) -> None:
        self.approach = approach
        records = build_world(cluster, workload, approach)
        self.world: World = records if with_numba else as_rows(records)
        self._run_until = compiled(run_until) if with_numba else run_until
        begin = compiled(begin_sessions) if with_numba else begin_sessions
        begin(self.world)

    def run(self, until_s: float = NEVER_S) -> Outcome:
        """To the last event, unless a time is given."""
        self._run_until(self.world, until_s)
        return outcome(self.world, self.approach.transfer_counts_to)


def begin_sessions(world: World) -> None:
    for session in range(world.cluster[0].sessions):
        push_session(world, session, world.sessions[session].next_call_s)
