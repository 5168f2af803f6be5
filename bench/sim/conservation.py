"""What must hold in every run, whatever the policy: nothing is lost, and nothing is early."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.sim.world import CHUNKED, DECODE, LISTS, NEVER_S, NONE, TRANSFERRING, WAITING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.sim.simulation import Simulation
    from bench.sim.world import EntryRow, RequestRow, World

ROUNDING_S = 1e-9


def check(simulation: Simulation) -> None:
    """Of the rows as they are after `run`."""
    world = simulation.world
    for instance in range(world.cluster[0].instances):
        _check_pool(world, instance)
        _check_pending(world, instance)
    for request in world.requests:
        _check_times(request)
        _check_duration(world, request)
    _check_totals(world)


def _check_pool(world: World, instance: int) -> None:
    row = world.instances[instance]
    parts = (row.free_tokens, row.cached_tokens, row.used_tokens)
    assert min(parts) >= 0, (instance, parts)
    assert sum(parts) == row.pool_tokens, (instance, parts)
    linked = list(_lru(world, instance))
    assert all(entry.tokens > 0 and entry.instance == instance for entry in linked), instance
    assert sum(entry.tokens for entry in linked) == row.cached_tokens, instance
    assert row.computed_tokens >= 0


def _lru(world: World, instance: int) -> Iterator[EntryRow]:
    number, before = world.instances[instance].lru_first, NONE
    while number != NONE:
        entry = world.entries[number]
        assert entry.before == before
        assert entry.linked
        yield entry
        number, before = entry.after, number
    assert world.instances[instance].lru_last == before


def _check_pending(world: World, instance: int) -> None:
    """Counters against the lists that they summarise."""
    row, base = world.instances[instance], instance * world.cluster[0].max_sequences
    decodes = [world.requests[n] for n in world.slots[base : base + row.decode_requests]]
    context = sum(
        r.prompt_tokens + r.output_tokens - (r.finish_iteration - row.iterations_ended)
        for r in decodes
    )
    # One that a transfer brought into a running iteration is not in it.
    late = row.iterations_started - row.iterations_ended
    joined = row.decode_requests - row.iteration_decodes if late else 0
    assert row.context_tokens == context + max(0, joined), instance
    assert row.next_finish == min((r.finish_iteration for r in decodes), default=NONE)
    assert len(list(_listed(world, instance, TRANSFERRING))) == row.transferring_requests
    pending = sum(r.uncached_tokens for r in _listed(world, instance, WAITING))
    pending += sum(r.prompt_tokens - r.computed_tokens for r in _listed(world, instance, CHUNKED))
    if row.role != DECODE:
        assert row.pending_prefill_tokens == pending, instance


def _listed(world: World, instance: int, kind: int) -> Iterator[RequestRow]:
    number = world.lists[instance * LISTS + kind].first
    while number != NONE:
        yield world.requests[number]
        number = world.requests[number].next_in_list


def _check_times(request: RequestRow) -> None:
    times = [request.arrival_s, request.admitted_s, request.first_token_s]
    if request.decode_instance != NONE:
        times += [request.decode_admitted_s, request.transfer_end_s]
    times.append(request.finished_s)
    assert times == sorted(times), request
    assert times[0] >= 0, request


def _check_duration(world: World, request: RequestRow) -> None:
    """Nothing finishes before it could: each token takes an iteration that holds it alone at least,
    and KV does not move faster than its link."""
    model = world.models[request.model]
    if request.first_token_s < NEVER_S:
        computed = request.prompt_tokens - request.cached_tokens
        batch = world.cluster[0].max_batch_tokens
        table = request.model * (batch + 1)
        least_s = (computed // batch) * world.linear_s[table + batch]
        least_s += world.linear_s[table + computed % batch]
        assert request.first_token_s - request.admitted_s >= least_s - ROUNDING_S, request
    if request.finished_s < NEVER_S:
        one_s = world.linear_s[request.model * (world.cluster[0].max_batch_tokens + 1) + 1]
        least_s = (request.output_tokens - 1) * (one_s + model.host_fixed_s)
        if request.decode_instance != NONE:
            least_s += request.moved_tokens * model.transfer_s_per_token
        assert request.finished_s - request.first_token_s >= least_s - ROUNDING_S, request


def _check_totals(world: World) -> None:
    cluster = world.cluster[0]
    finished = [r for r in world.requests if r.finished_s < NEVER_S]
    assert len(finished) == cluster.finished_requests
    if len(finished) < cluster.requests:
        return
    wanted = sum(r.prompt_tokens - r.cached_tokens + r.output_tokens - 1 for r in finished)
    assert sum(row.computed_tokens for row in world.instances) == wanted
    assert all(row.used_tokens == 0 for row in world.instances)
