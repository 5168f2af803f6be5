"""The bookkeeping of one (session, model): what a newer history changes, and what is next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from coordinator.calls import CallKind
from coordinator.history import History
from coordinator.instances import Instance, Pair
from coordinator.sessions import Session
from coordinator.shadow_job import JobLimits, ShadowJob, Step
from coordinator.stream_text import Answer
from policy.vocabulary import Role

if TYPE_CHECKING:
    from collections.abc import Callable

LIMITS = JobLimits(
    block_size=4, max_tokens=64, segment_tokens=16, resubmit_tokens=8, push_tokens=16
)
HISTORY = History(kind=CallKind.CHAT, text=b'[{"role":"user"}]', fields={})
LATER = History(kind=CallKind.CHAT, text=b'[{"role":"user"},{}]', fields={})


def an_instance(name: str, role: Role) -> Instance:
    return Instance(name=name, url=f"http://{name}", role=role, model="large", healthy=True)


P, P2 = an_instance("p", Role.PREFILL), an_instance("p2", Role.PREFILL)
D, D2 = an_instance("d", Role.DECODE), an_instance("d2", Role.DECODE)
BOTH = an_instance("c", Role.COLOCATED)
COLOCATED = Pair(BOTH, BOTH)


def a_job(
    stable: int = 0, *, covered: int = 0, pushed: int = 0, pair: Pair = COLOCATED
) -> ShadowJob:
    session = Session(id="s", tenant="t", kind=CallKind.CHAT, identified=True)
    job = ShadowJob(session, "large", LIMITS, bytes_per_token=3.5)
    job.retarget(range(stable), HISTORY, pair)
    if covered:
        job.begin(covered)
        job.computed(covered, 0)
        job.end_segment()
    job.pushed_to(pushed)
    job.check()
    return job


@pytest.mark.parametrize(
    ("stable", "covered", "pair", "pushed", "expected"),
    [
        (0, 0, COLOCATED, 0, None),
        (3, 0, COLOCATED, 0, None),
        (10, 0, COLOCATED, 0, Step(8, False)),
        (40, 0, COLOCATED, 0, Step(16, False)),
        (40, 16, COLOCATED, 0, Step(32, False)),
        (40, 40, COLOCATED, 0, None),
        (40, 16, Pair(P, D), 0, Step(32, False)),
        (40, 40, Pair(P, D), 0, Step(16, True)),
        (40, 40, Pair(P, D), 16, Step(32, True)),
        (40, 40, Pair(P, D), 40, None),
        (100, 60, COLOCATED, 0, Step(64, False)),
    ],
    ids=[
        "nothing",
        "part_of_a_block",
        "one_short_segment",
        "first_segment",
        "second_segment",
        "done",
        "compute_before_push",
        "push_what_d_lacks",
        "push_piece_by_piece",
        "d_has_it_all",
        "cut_at_the_context",
    ],
)
def test_next_step(
    stable: int, covered: int, pair: Pair, pushed: int, expected: Step | None
) -> None:
    assert a_job(stable, covered=covered, pushed=pushed, pair=pair).next_step() == expected


@pytest.mark.parametrize(
    ("stable", "pair", "expected"),
    [
        (list(range(44)), Pair(P, D), (24, 16)),
        ([*range(22), *[99] * 20], Pair(P, D), (20, 16)),
        ([*range(10), *[99] * 20], Pair(P, D), (8, 8)),
        (list(range(12)), Pair(P, D), (12, 12)),
        (list(range(44)), Pair(P2, D), (0, 16)),
        (list(range(44)), Pair(P, D2), (24, 0)),
    ],
    ids=["longer", "cut_in_covered", "cut_early", "shorter", "other_p", "other_d"],
)
def test_a_newer_history_keeps_what_is_still_a_prefix_of_it(
    stable: list[int], pair: Pair, expected: tuple[int, int]
) -> None:
    job = a_job(40, covered=24, pushed=16, pair=Pair(P, D))
    job.retarget(stable, LATER, pair)
    job.check()
    assert (job.covered, job.pushed) == expected
    assert job.warmth.shadow_tokens <= max(job.covered, 24)
    assert job.missing_tokens == len(stable) // 4 * 4 - job.covered


@pytest.mark.parametrize(
    ("stable", "pair", "fits"),
    [
        (list(range(44)), COLOCATED, True),
        (list(range(16)), COLOCATED, True),
        ([*range(15), 99], COLOCATED, False),
        (list(range(44)), Pair(P, P), False),
    ],
    ids=["longer", "just_as_long", "another_token", "another_instance"],
)
def test_a_segment_in_flight_must_be_a_prefix_on_the_same_instance(
    stable: list[int], pair: Pair, fits: bool
) -> None:
    job = a_job(40)
    job.begin(16)
    assert job.retarget(stable, LATER, pair) is fits
    assert job.warmth.superseded == 1


@pytest.mark.parametrize(
    ("history", "prefill_instance", "expected"),
    [(LATER, "c", 20), (LATER, None, 20), (LATER, "elsewhere", 0), (HISTORY, "c", 20)],
)
def test_the_models_own_call_counts_where_it_ran(
    history: History, prefill_instance: str | None, expected: int
) -> None:
    job = a_job()
    job.own = HISTORY.head()
    job.warmth.own_tokens = 23
    job.warmth.prefill_instance = prefill_instance
    job.retarget(range(40), history, COLOCATED)
    assert job.covered == expected


def test_an_own_call_of_a_rewritten_history_does_not_count() -> None:
    job = a_job()
    job.own = LATER.head()
    job.warmth.own_tokens = 23
    job.retarget(range(40), HISTORY, COLOCATED)
    assert job.covered == 0


def test_small_pieces_of_a_growing_history_wait() -> None:
    job = a_job(40, covered=40)
    growing = LATER.answered(Answer(content="x"))
    job.retarget(range(44), growing, COLOCATED)
    assert job.next_step() is None
    job.retarget(range(48), growing, COLOCATED)
    assert job.next_step() == Step(48, False)
    job.retarget(range(44), LATER.answered(Answer(complete=True)), COLOCATED)
    assert job.next_step() == Step(44, False)


def test_a_failure_ends_the_work_of_its_history_only() -> None:
    job = a_job(40)
    job.stalled = True
    assert job.next_step() is None
    job.retarget(range(44), LATER, COLOCATED)
    assert job.next_step() == Step(16, False)


def test_a_stopped_job_keeps_what_it_has_and_says_how_far_it_may_have_come() -> None:
    job = a_job(40, covered=16)
    job.begin(32)
    assert not job.stop()  # no task was running
    assert job.next_step() is None
    assert (job.covered, job.in_flight, job.warmth.running_tokens) == (16, 0, 32)
    job.retarget(range(44), LATER, COLOCATED)
    assert (job.covered, job.warmth.running_tokens) == (16, 0)


def test_what_a_stopped_segment_computed_is_counted_at_the_next_look() -> None:
    job = a_job(64, covered=16)
    job.begin(48)
    job.stop()
    assert job.warmth.stopped_tokens == 48
    job.retarget(range(64), LATER, COLOCATED)
    assert job.computed(64, cached_tokens=32) == 16 + 32  # 16 of the stopped one, 32 of its own
    assert (job.warmth.computed_tokens, job.warmth.own_tokens) == (16 + 48, 0)
    assert job.warmth.stopped_tokens == 0


@pytest.mark.parametrize("end_it", [ShadowJob.drop_segment, ShadowJob.lost_segment])
def test_a_segment_that_ended_early_had_computed_something(
    end_it: Callable[[ShadowJob], None],
) -> None:
    job = a_job(64, covered=16)
    job.begin(48)
    end_it(job)
    job.retarget([*range(40), *range(1000, 1024)], LATER, COLOCATED)  # rewritten behind 40
    assert job.computed(64, cached_tokens=48) == 24 + 16


def test_costs_are_counted_once() -> None:
    job = a_job(40, covered=16, pair=Pair(P, D))
    assert job.computed(32, cached_tokens=16) == 16
    assert job.computed(32, cached_tokens=28) == 4  # asked again, for a push
    assert (job.warmth.segments, job.warmth.computed_tokens) == (2, 36)
    assert job.pushed_to(16) == 16
    assert job.pushed_to(32) == 16
    assert job.warmth.pushed_tokens == 32


def test_what_the_engine_had_anyway_is_not_the_shadows() -> None:
    job = a_job(40)
    job.computed(16, cached_tokens=12)  # a system prompt that sessions share
    assert job.warmth.own_tokens == 12
    assert job.warmth.shadow_tokens == 16


def test_bytes_per_token_is_measured_once_there_is_a_render() -> None:
    assert a_job(17).bytes_per_token == 1.0
