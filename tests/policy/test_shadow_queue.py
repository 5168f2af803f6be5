"""Order, fairness, supersede and release; and that the books always balance."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from policy.shadow_queue import ShadowJob, ShadowQueue

TURN = 10


def a_job(
    request_id: str,
    *,
    session_id: str = "",
    model: str = "",
    probability: float = 0.5,
) -> ShadowJob:
    return ShadowJob(
        request_id=request_id,
        session_id=session_id,
        model=model,
        probability=probability,
    )


def a_queue(*jobs: ShadowJob) -> ShadowQueue:
    queue = ShadowQueue(TURN)
    for job in jobs:
        queue.add(job)
    return queue


def order(queue: ShadowQueue) -> list[str]:
    return [job.request_id for job in queue.ordered()]


def test_likelier_jobs_come_first_and_equal_ones_in_order_of_arrival() -> None:
    queue = a_queue(a_job("r1"), a_job("r2", probability=0.9), a_job("r3"))
    assert order(queue) == ["r2", "r1", "r3"]


def test_equally_likely_jobs_take_turns_of_so_many_tokens() -> None:
    queue = a_queue(a_job("r1"), a_job("r2"), a_job("r3"))
    served = []
    for _ in range(14):
        served.append(order(queue)[0])
        queue.served(served[-1], 6)
    turns = ["r1", "r2", "r3", "r1", "r2", "r3", "r1"]
    assert served == [request_id for request_id in turns for _ in range(2)]


def test_a_session_that_submits_one_segment_after_another_gets_no_more_turns() -> None:
    queue = a_queue(a_job("long", session_id="s"))
    served = {"s": 0, "t": 0}
    for segment in range(20):
        queue.add(a_job(f"t{segment}", session_id="t"))
        for _ in range(2):
            job = queue.ordered()[0]
            served[job.session_id] += 1
            queue.served(job.request_id, TURN)
            if job.session_id == "t":
                queue.cancel(job.request_id)
    assert served == {"s": 20, "t": 20}


def test_turns_do_not_outweigh_probability() -> None:
    queue = a_queue(a_job("r1", probability=0.6), a_job("r2"))
    queue.served("r1", TURN)
    assert order(queue) == ["r1", "r2"]


def test_nothing_served_is_no_service() -> None:
    with pytest.raises(AssertionError):
        a_queue(a_job("r1")).served("r1", 0)


def test_a_newer_job_of_the_same_session_and_model_supersedes_the_older_one() -> None:
    queue = a_queue(a_job("r1", session_id="s", model="b"))
    assert queue.add(a_job("r2", session_id="s", model="b")) == ["r1"]
    assert queue.add(a_job("r3", session_id="s", model="c")) == []
    assert queue.add(a_job("r4", session_id="t", model="b")) == []
    assert order(queue) == ["r2", "r3", "r4"]
    queue.check()


def test_a_job_without_a_session_supersedes_nothing() -> None:
    queue = a_queue(a_job("r1"))
    assert queue.add(a_job("r2")) == []
    assert queue.release("") == []
    assert len(queue) == 2


def test_resubmitting_neither_jumps_the_queue_nor_loses_its_place() -> None:
    queue = a_queue(a_job("r1", session_id="s"), a_job("r2", session_id="t"))
    queue.served("r1", TURN - 1)
    queue.add(a_job("r3", session_id="s"))
    assert order(queue) == ["r3", "r2"], "what is left of its turn"
    queue.served("r3", 1)
    queue.add(a_job("r4", session_id="s"))
    assert order(queue) == ["r2", "r4"]
    queue.check()


def test_a_request_id_is_queued_once() -> None:
    queue = a_queue(a_job("r1"))
    with pytest.raises(ValueError, match=r"^shadow job r1 is already queued$"):
        queue.add(a_job("r1"))


def test_a_routed_call_releases_its_sessions_job_on_this_model_only() -> None:
    queue = a_queue(
        a_job("r1", session_id="s", model="b"),
        a_job("r2", session_id="s", model="c"),
        a_job("r3", session_id="t", model="b"),
    )
    assert queue.release("s", "b") == ["r1"]
    assert queue.release("s", "b") == []
    assert order(queue) == ["r2", "r3"]
    queue.check()


def test_cancelling_twice_is_harmless() -> None:
    queue = a_queue(a_job("r1", session_id="s"))
    assert queue.cancel("r1")
    assert not queue.cancel("r1")
    queue.check()


@pytest.mark.parametrize("probability", [1.5, float("nan")])
def test_a_job_that_makes_no_sense_is_refused(probability: float) -> None:
    message = f"shadow job r1: probability must be between 0 and 1, got {probability}"
    with pytest.raises(ValueError, match=f"^{message}$"):
        a_job("r1", probability=probability)


class QueueMachine(RuleBasedStateMachine):
    """Any sequence of events; the model beside it is a plain dict of who owns which request."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = ShadowQueue(TURN)
        self.owner: dict[str, tuple[str, str]] = {}
        self.count = 0

    def _gone(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            del self.owner[request_id]

    @rule(
        session_id=st.sampled_from(["", "s", "t"]),
        model=st.sampled_from(["b", "c"]),
        probability=st.sampled_from([0.1, 0.5, 0.5, 1.0]),
    )
    def add(self, session_id: str, model: str, probability: float) -> None:
        self.count += 1
        request_id = f"r{self.count}"
        same = [
            other
            for other, owner in self.owner.items()
            if session_id and owner == (session_id, model)
        ]
        job = a_job(request_id, session_id=session_id, model=model, probability=probability)
        assert self.queue.add(job) == same
        self._gone(same)
        self.owner[request_id] = (session_id, model)

    @precondition(lambda self: self.owner)
    @rule(data=st.data(), tokens=st.integers(1, 3 * TURN))
    def serve(self, data: st.DataObject, tokens: int) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.owner)))
        self.queue.served(request_id, tokens)

    @precondition(lambda self: self.owner)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.owner)))
        assert self.queue.cancel(request_id)
        self._gone([request_id])

    @rule(session_id=st.sampled_from(["s", "t"]), model=st.sampled_from(["b", "c"]))
    def release(self, session_id: str, model: str) -> None:
        expected = [r for r, owner in self.owner.items() if owner == (session_id, model)]
        assert self.queue.release(session_id, model) == expected
        self._gone(expected)

    @invariant()
    def the_books_balance(self) -> None:
        self.queue.check()
        jobs = self.queue.ordered()
        assert {job.request_id: (job.session_id, job.model) for job in jobs} == self.owner
        assert len(self.queue) == len(self.owner)
        assert all(request_id in self.queue for request_id in self.owner)
        probabilities = [job.probability for job in jobs]
        assert probabilities == sorted(probabilities, reverse=True)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=50, stateful_step_count=30)
