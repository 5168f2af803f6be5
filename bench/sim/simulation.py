"""Runs a cluster on a workload and hands back what happened to every request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.sim.approach import NO_SHADOW, refuse_unbuilt
from bench.sim.build import build_world
from bench.sim.compiled import HAS_NUMBA, compiled
from bench.sim.events import run_until
from bench.sim.outcome import outcome
from bench.sim.session_heap import push_session
from bench.sim.world import NEVER_S, as_records, as_rows

if TYPE_CHECKING:
    from bench.sim.approach import Approach
    from bench.sim.build import Workload
    from bench.sim.cluster import Cluster
    from bench.sim.outcome import Outcome
    from bench.sim.world import World


class Simulation:
    """`run` may be called again with a later time; `world` holds the rows in between."""

    def __init__(
        self,
        cluster: Cluster,
        workload: Workload,
        approach: Approach = NO_SHADOW,
        *,
        with_numba: bool = HAS_NUMBA,
    ) -> None:
        refuse_unbuilt(approach)
        if any(work.told for work in workload.sessions):
            raise NotImplementedError("sessions[].told is not simulated yet")
        self.approach = approach
        self.world: World = build_world(cluster, workload)
        self._with_numba = with_numba
        for session in range(self.world.cluster[0].sessions):
            push_session(self.world, session, self.world.sessions[session].next_call_s)

    def run(self, until_s: float = NEVER_S) -> Outcome:
        """To the last event, unless a time is given."""
        if self._with_numba:
            records = as_records(self.world)
            compiled(run_until)(records, until_s)
            as_rows(records, self.world)
        else:
            run_until(self.world, until_s)
        return outcome(self.world, self.approach.transfer_counts_to)
