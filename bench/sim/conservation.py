"""What must hold in every run, whatever the policy: nothing is lost, and nothing is early."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.sim.rows import (
    CHUNKED,
    DECODE,
    HOST_KV,
    KV_LISTS,
    LISTS,
    MAX_SHADOW_CHUNKS,
    NEVER_S,
    NONE,
    NORMAL_KV,
    SHADOW_KV,
    TRANSFERRING,
    WAITING,
)
from bench.sim.world import as_records

if TYPE_CHECKING:
    from bench.sim.simulation import Simulation

ROUNDING_S = 1e-9


def check(simulation: Simulation) -> None:
    """Of the state as it is after `run`."""
    world: Any = as_records(simulation.world)
    for instance in range(len(world.instances)):
        _check_pool(world, instance)
        _check_pending(world, instance)
        _check_shadows(world, instance)
    _check_times(world)
    _check_durations(world)
    _check_totals(world)


def _check_pool(world: Any, instance: int) -> None:
    row = world.instances[instance]
    names = ("free_tokens", "cached_tokens", "shadow_tokens", "used_tokens")
    parts = [int(row[name]) for name in names]
    assert min(parts) >= 0, (instance, parts)
    assert sum(parts) == row["pool_tokens"], (instance, parts)
    columns = {NORMAL_KV: "tokens", SHADOW_KV: "shadow_tokens", HOST_KV: "host_tokens"}
    sums = {NORMAL_KV: parts[1], SHADOW_KV: parts[2], HOST_KV: row["host_used_tokens"]}
    for kind, column in columns.items():
        linked = world.entries[_linked(world, instance, kind)]
        assert (linked[column] > 0).all(), (instance, column)
        assert (linked["instance"] == instance).all(), (instance, column)
        assert linked[column].sum() == sums[kind], (instance, column)


def _linked(world: Any, instance: int, kind: int) -> list[int]:
    """The numbers of a KV list's entries; those that were used earlier come first."""
    row = world.kv_lists[instance * KV_LISTS + kind]
    first = kind * len(world.entries)
    number, before, used_s, found = int(row["first"]), NONE, 0.0, []
    while number != NONE:
        link = world.links[first + number]
        assert link["before"] == before
        assert link["is_linked"]
        assert link["used_s"] >= used_s
        found.append(number)
        number, before, used_s = int(link["after"]), number, link["used_s"]
    assert row["last"] == before
    return found


def _check_pending(world: Any, instance: int) -> None:
    """Counters against the lists that they summarise."""
    row, base = world.instances[instance], instance * world.cluster[0]["max_sequences"]
    decodes = world.requests[world.slots[base : base + row["decode_requests"]]]
    missing = decodes["finish_iteration"] - row["iterations_ended"]
    context = (decodes["prompt_tokens"] + decodes["output_tokens"] - missing).sum()
    # One that a transfer brought into a running iteration is not in it.
    late = row["iterations_started"] - row["iterations_ended"]
    joined = row["decode_requests"] - row["iteration_decodes"] if late else 0
    assert row["context_tokens"] == context + max(0, joined), instance
    assert row["next_finish"] == min(decodes["finish_iteration"], default=NONE)
    assert row["least_due_s"] == min(decodes["due_s"], default=NEVER_S)
    assert row["routed_decodes"] == (decodes["session"] != NONE).sum()
    under_way = _listed(world, instance, TRANSFERRING)
    assert len(under_way) == row["transferring_requests"]
    if row["role"] == DECODE:
        return
    waiting = _listed(world, instance, WAITING)
    started = np.concatenate([_listed(world, instance, CHUNKED), under_way])
    pending = waiting["uncached_tokens"].sum()
    pending += (started["prompt_tokens"] - started["computed_tokens"]).sum()
    assert row["pending_prefill_tokens"] == pending, instance


def _listed(world: Any, instance: int, kind: int) -> Any:
    number, found = int(world.lists[instance * LISTS + kind]["first"]), []
    while number != NONE:
        found.append(number)
        number = int(world.requests[number]["next_in_list"])
    return world.requests[found]


def _check_shadows(world: Any, instance: int) -> None:
    """What shadow work writes is what its jobs say, and its class keeps under its cap."""
    row = world.instances[instance]
    first = instance * MAX_SHADOW_CHUNKS
    writing = world.chunks[first : first + row["shadow_chunks"]]["tokens"].sum()
    writing += world.jobs["restored_tokens"][world.jobs["queued_on"] == instance].sum()
    writing += row["push_tokens"] if row["push_job"] != NONE else 0
    assert row["shadow_used_tokens"] == writing, instance
    assert (world.jobs["queued_on"] == instance).sum() == row["queued_jobs"], instance
    assert 0 <= row["shadow_hit_tokens"] <= row["shadow_computed_tokens"], instance
    model = world.models[row["model"]]
    if model["dedicated_instance"] != instance:
        cap = int(row["pool_tokens"] * world.cluster[0]["kv_cap_share"])
        assert row["shadow_tokens"] + row["shadow_used_tokens"] <= cap, instance
    if world.cluster[0]["has_host_tier"]:
        assert row["host_used_tokens"] <= model["host_pool_tokens"], instance


def _check_times(world: Any) -> None:
    requests = world.requests
    moved = requests["decode_instance"] != NONE
    order = ["arrival_s", "admitted_s", "ready_s", "first_token_s", "finished_s"]
    _check_order(requests, order)
    _check_order(requests[moved], ["first_token_s", "decode_admitted_s", "transfer_end_s"])
    _check_order(requests[moved], ["transfer_end_s", "finished_s"])
    assert (requests["arrival_s"] >= 0).all()


def _check_order(requests: Any, names: list[str]) -> None:
    for earlier, later in itertools.pairwise(names):
        wrong = requests[requests[earlier] > requests[later]]
        assert len(wrong) == 0, (earlier, later, wrong)


def _check_durations(world: Any) -> None:
    """Nothing finishes before it could: each token takes an iteration that holds it alone at least,
    and KV does not move faster than its link."""
    batch, requests = int(world.cluster[0]["max_batch_tokens"]), world.requests
    model = world.models[requests["model"]]
    table = requests["model"] * (batch + 1)
    computed = requests["prompt_tokens"] - requests["cached_tokens"]
    least_s = (computed // batch) * world.linear_s[table + batch]
    least_s += world.linear_s[table + computed % batch]
    _check_lasts(requests, "ready_s", "first_token_s", least_s)
    _check_lasts(
        requests, "admitted_s", "ready_s", requests["host_tokens"] * model["host_s_per_token"]
    )
    later = requests["output_tokens"] - 1
    least_s = later * (world.linear_s[table + 1] + model["host_fixed_s"])
    least_s += requests["moved_tokens"] * model["transfer_s_per_token"]
    _check_lasts(requests, "first_token_s", "finished_s", least_s)


def _check_lasts(requests: Any, start: str, end: str, least_s: np.ndarray) -> None:
    done = requests[end] < NEVER_S
    short = requests[end][done] - requests[start][done] < least_s[done] - ROUNDING_S
    assert not short.any(), (start, end, requests[done][short])


def _check_totals(world: Any) -> None:
    cluster, requests, instances = world.cluster[0], world.requests, world.instances
    finished = requests[requests["finished_s"] < NEVER_S]
    assert len(finished) == cluster["finished_requests"]
    parts = finished["host_tokens"] + finished["oracle_tokens"]
    assert (parts <= finished["cached_tokens"]).all()
    assert (finished["shadow_tokens"] <= finished["cached_tokens"]).all()
    hits = requests["shadow_tokens"].sum()
    assert hits == instances["shadow_hit_tokens"].sum(), hits
    if len(finished) < cluster["requests"]:
        return
    wanted = finished["prompt_tokens"] - finished["cached_tokens"] + finished["output_tokens"] - 1
    assert instances["computed_tokens"].sum() == wanted.sum()
    assert (instances["used_tokens"] == instances["shadow_used_tokens"]).all()
