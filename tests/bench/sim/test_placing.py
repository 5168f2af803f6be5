"""The simulator places as `policy.placement` does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.sim import placing
from bench.sim.approach import NO_SHADOW
from bench.sim.build import RoutedWork, Workload, build_world
from bench.sim.cluster import Cluster, ModelPool
from bench.sim.latency import LatencyModel
from bench.sim.rows import NONE
from bench.sim.world import as_rows
from bench.workloads.sessions import RoutedSession, SessionCall
from policy import placement
from policy.placement import DecodeCandidate, PrefillCandidate, place_decode, place_prefill

if TYPE_CHECKING:
    from bench.sim.world import World

LATENCY = LatencyModel("Llama-3.1-8B")
PROMPT_TOKENS, KEPT_TOKENS = 4000, 3900
REQUEST = 0


def test_the_numbers_are_compared_by_the_policy_itself() -> None:
    assert placing.clearly_faster is placement.clearly_faster
    assert placing.prefill_completion_s is placement.prefill_completion_s


def a_world(**counts: int) -> World:
    call = SessionCall(KEPT_TOKENS, PROMPT_TOKENS - KEPT_TOKENS, 50, 0.0)
    session = RoutedSession(session_id="s", kind="k", task="t", arrival_s=0.0, calls=(call,))
    cluster = Cluster(pools=(ModelPool(latency=LATENCY, **counts),))
    return as_rows(build_world(cluster, Workload(sessions=(RoutedWork(session, (0,)),)), NO_SHADOW))


counts: Any = st.integers(0, 20_000)
stickies: Any = st.integers(NONE, 2)


@settings(max_examples=200)
@given(st.lists(st.tuples(counts, counts, st.floats(0, 0.2)), min_size=3, max_size=3), stickies)
def test_prefill_goes_where_the_policy_says(
    instances: list[tuple[int, int, float]], sticky: int
) -> None:
    world = a_world(colocated=3)
    now_s = world.cluster[0].now_s = 7.0
    candidates = []
    for number, (pending, held, rest_s) in enumerate(instances):
        row = world.instances[number]
        row.pending_prefill_tokens = pending
        if rest_s > 0:
            row.iterations_started, row.iteration_end_s = 1, now_s + rest_s
        world.entries[number].tokens = held
        s_per_token = world.models[0].prefill_s_per_token
        found = min(held, KEPT_TOKENS)
        candidates.append(
            PrefillCandidate(
                name=str(number),
                healthy=True,
                queue_s=pending * s_per_token + (row.iteration_end_s - now_s if rest_s else 0),
                uncached_tokens=PROMPT_TOKENS - (found - found % 16),
                s_per_token=s_per_token,
            )
        )
    world.sticky[0].prefill_instance = sticky
    expected = place_prefill(candidates, None if sticky == NONE else str(sticky))
    assert str(placing.pick_prefill(world, REQUEST)) == expected.instance
    assert str(world.sticky[0].prefill_instance) == expected.instance


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.sampled_from([1000, 4049, 4050, 90_000]), st.integers(0, 3)),
        min_size=3,
        max_size=3,
    ),
    stickies,
)
def test_decode_goes_where_the_policy_says(instances: list[tuple[int, int]], sticky: int) -> None:
    world = a_world(prefill=1, decode=3)
    candidates = []
    for number, (free, running) in enumerate(instances):
        row = world.instances[1 + number]
        row.free_tokens, row.cached_tokens, row.decode_requests = (
            free // 2,
            free - free // 2,
            running,
        )
        candidates.append(
            DecodeCandidate(
                name=str(1 + number), healthy=True, in_flight_requests=running, free_tokens=free
            )
        )
    kept = NONE if sticky == NONE else 1 + sticky
    world.sticky[0].decode_instance = kept
    expected = place_decode(candidates, None if kept == NONE else str(kept), PROMPT_TOKENS + 50)
    assert str(placing.pick_decode(world, 0, 0, PROMPT_TOKENS + 50)) == expected.instance


@pytest.mark.parametrize("waiting", [0, 1])
def test_a_decode_instance_with_a_queue_has_no_room(waiting: int) -> None:
    world = a_world(prefill=1, decode=2)
    world.instances[2].decode_requests = 1
    world.lists[1 * 3].length = waiting
    # The first has fewer requests; with a queue it has as many and no room.
    assert placing.pick_decode(world, 0, 0, PROMPT_TOKENS + 50) == 1 + waiting
