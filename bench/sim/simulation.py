"""Runs a cluster on a workload and hands back what happened to every request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.sim.build import build_world
from bench.sim.compiled import HAS_NUMBA, compiled
from bench.sim.events import run_until
from bench.sim.session_heap import push_session
from bench.sim.world import NEVER_S, as_records, as_rows

if TYPE_CHECKING:
    from bench.sim.build import Workload
    from bench.sim.cluster import Cluster
    from bench.sim.world import World


class Simulation:
    """`run` may be called again with a later time; `world` holds the rows in between."""

    def __init__(
        self, cluster: Cluster, workload: Workload, *, with_numba: bool = HAS_NUMBA
    ) -> None:
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
        return outcome(self.world)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One number per request; times of what has not happened yet are not finite."""

    model: np.ndarray
    session: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    cached_tokens: np.ndarray
    moved_tokens: np.ndarray
    arrival_s: np.ndarray
    admitted_s: np.ndarray
    first_token_s: np.ndarray
    decode_admitted_s: np.ndarray
    transfer_end_s: np.ndarray
    finished_s: np.ndarray
    events: int
    end_s: float

    @property
    def ttft_s(self) -> np.ndarray:
        times_s: np.ndarray = self.first_token_s - self.arrival_s
        return times_s

    @property
    def latency_s(self) -> np.ndarray:
        times_s: np.ndarray = self.finished_s - self.arrival_s
        return times_s

    @property
    def tpot_s(self) -> np.ndarray:
        """After the first token, which on a split cluster the prefill instance gives: transfer and
        decode queue count here, as in the paper. 0 where there is one token only."""
        later_tokens = np.maximum(1, self.output_tokens - 1)
        times_s: np.ndarray = (self.finished_s - self.first_token_s) / later_tokens
        return times_s

    @property
    def finished(self) -> np.ndarray:
        finished: np.ndarray = np.isfinite(self.finished_s)
        return finished


def outcome(world: World) -> Outcome:
    rows = world.requests

    def numbers(name: str) -> np.ndarray:
        return np.array([getattr(row, name) for row in rows])

    def times(name: str) -> np.ndarray:
        values = numbers(name)
        return np.where(values >= NEVER_S, np.inf, values)

    return Outcome(
        model=numbers("model"),
        session=numbers("session"),
        prompt_tokens=numbers("prompt_tokens"),
        output_tokens=numbers("output_tokens"),
        cached_tokens=numbers("cached_tokens"),
        moved_tokens=numbers("moved_tokens"),
        arrival_s=times("arrival_s"),
        admitted_s=times("admitted_s"),
        first_token_s=times("first_token_s"),
        decode_admitted_s=times("decode_admitted_s"),
        transfer_end_s=times("transfer_end_s"),
        finished_s=times("finished_s"),
        events=world.cluster[0].events,
        end_s=world.cluster[0].now_s,
    )
