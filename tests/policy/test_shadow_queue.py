"""Order, fairness, supersede and release; and that the books always balance."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from policy.shadow_queue import ShadowChunk, ShadowJob, ShadowQueue


def a_job(
    request_id: str,
    *,
    session_id: str = "",
    model: str = "",
    missing_tokens: int = 100,
    probability: float = 0.5,
) -> ShadowJob:
    return ShadowJob(
        request_id=request_id,
        session_id=session_id,
        model=model,
        missing_tokens=missing_tokens,
        probability=probability,
    )


def a_queue(*jobs: ShadowJob) -> ShadowQueue:
    queue = ShadowQueue()
    for job in jobs:
        queue.add(job)
    return queue


def order(queue: ShadowQueue) -> list[str]:
    return [job.request_id for job in queue.ordered()]


def test_likelier_jobs_come_first_and_equal_ones_in_order_of_arrival() -> None:
    queue = a_queue(a_job("r1"), a_job("r2", probability=0.9), a_job("r3"))
    assert order(queue) == ["r2", "r1", "r3"]


def test_equally_likely_jobs_take_turns() -> None:
    queue = a_queue(a_job("r1"), a_job("r2"), a_job("r3"))
    served = []
    for _ in range(7):
        served.append(order(queue)[0])
        queue.served(served[-1], 10)
    assert served == ["r1", "r2", "r3", "r1", "r2", "r3", "r1"]


def test_turns_do_not_outweigh_probability() -> None:
    queue = a_queue(a_job("r1", probability=0.6), a_job("r2"))
    queue.served("r1", 10)
    assert order(queue) == ["r1", "r2"]


def test_a_grant_is_spread_over_the_jobs_in_order() -> None:
    queue = a_queue(a_job("r1"), a_job("r2", probability=0.9, missing_tokens=30), a_job("r3"))
    assert queue.plan(50) == [ShadowChunk("r2", 30), ShadowChunk("r1", 20)]
    assert queue.plan(30) == [ShadowChunk("r2", 30)]
    assert queue.plan(1000)[-1] == ShadowChunk("r3", 100)
    assert queue.plan(0) == []
    assert queue.missing_tokens == 230, "a plan records nothing"


def test_a_served_job_shrinks_and_leaves_when_nothing_is_missing() -> None:
    queue = a_queue(a_job("r1", session_id="s"))
    assert queue.served("r1", 60) == 40
    assert queue["r1"].missing_tokens == 40
    assert queue.served("r1", 40) == 0
    assert "r1" not in queue
    assert len(queue) == 0
    assert queue.release("s") == []
    queue.check()


def test_more_than_is_missing_cannot_be_served() -> None:
    with pytest.raises(AssertionError):
        a_queue(a_job("r1")).served("r1", 101)


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


def test_resubmitting_does_not_jump_the_queue() -> None:
    queue = a_queue(a_job("r1", session_id="s"), a_job("r2", session_id="t"))
    queue.served("r2", 10)
    queue.served("r1", 10)
    queue.add(a_job("r3", session_id="s"))
    assert order(queue) == ["r2", "r3"]


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


def test_truncating_leaves_out_the_end_and_never_lengthens() -> None:
    queue = a_queue(a_job("r1"))
    assert queue.truncate("r1", 400) == 100
    assert queue.truncate("r1", 40) == 40
    assert queue["r1"].missing_tokens == 40
    assert queue.truncate("r1", -5) == 0
    assert "r1" not in queue


def test_a_job_that_lost_its_blocks_starts_again() -> None:
    queue = a_queue(a_job("r1"))
    queue.served("r1", 90)
    queue.restart("r1", 100)
    assert queue["r1"].missing_tokens == 100


@pytest.mark.parametrize(
    ("missing_tokens", "probability", "message"),
    [
        (0, 0.5, "shadow job r1: nothing is missing"),
        (1, 1.5, "shadow job r1: probability must be between 0 and 1, got 1.5"),
        (1, float("nan"), "shadow job r1: probability must be between 0 and 1, got nan"),
    ],
)
def test_a_job_that_makes_no_sense_is_refused(
    missing_tokens: int, probability: float, message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        a_job("r1", missing_tokens=missing_tokens, probability=probability)


class QueueMachine(RuleBasedStateMachine):
    """Any sequence of events; the model beside it is a plain dict of what is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = ShadowQueue()
        self.missing: dict[str, int] = {}
        self.owner: dict[str, tuple[str, str]] = {}
        self.count = 0

    def _gone(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            del self.missing[request_id], self.owner[request_id]

    def _left(self, request_id: str, missing_tokens: int) -> None:
        if missing_tokens:
            self.missing[request_id] = missing_tokens
        else:
            self._gone([request_id])

    @rule(
        session_id=st.sampled_from(["", "s", "t"]),
        model=st.sampled_from(["b", "c"]),
        missing_tokens=st.integers(1, 500),
        probability=st.sampled_from([0.1, 0.5, 0.5, 1.0]),
    )
    def add(self, session_id: str, model: str, missing_tokens: int, probability: float) -> None:
        self.count += 1
        request_id = f"r{self.count}"
        same = [
            other
            for other, owner in self.owner.items()
            if session_id and owner == (session_id, model)
        ]
        job = a_job(
            request_id,
            session_id=session_id,
            model=model,
            missing_tokens=missing_tokens,
            probability=probability,
        )
        assert self.queue.add(job) == same
        self._gone(same)
        self.missing[request_id] = missing_tokens
        self.owner[request_id] = (session_id, model)

    @rule(tokens=st.integers(0, 800))
    def serve_a_grant(self, tokens: int) -> None:
        chunks = self.queue.plan(tokens)
        total = sum(chunk.tokens for chunk in chunks)
        assert total == min(tokens, sum(self.missing.values()))
        for chunk in chunks:
            left = self.queue.served(chunk.request_id, chunk.tokens)
            assert left == self.missing[chunk.request_id] - chunk.tokens
            self._left(chunk.request_id, left)

    @precondition(lambda self: self.missing)
    @rule(data=st.data(), missing_tokens=st.integers(0, 500))
    def truncate(self, data: st.DataObject, missing_tokens: int) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.missing)))
        left = self.queue.truncate(request_id, missing_tokens)
        assert left == min(missing_tokens, self.missing[request_id])
        self._left(request_id, left)

    @precondition(lambda self: self.missing)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.missing)))
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
        assert {job.request_id: job.missing_tokens for job in self.queue.ordered()} == self.missing
        assert self.queue.missing_tokens == sum(self.missing.values())


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=50, stateful_step_count=30)
