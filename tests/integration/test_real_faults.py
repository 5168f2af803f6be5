"""What a client sees when it goes away, or when a real engine dies, freezes or comes back."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from tests.integration.client import Agent, Answer, until
from tests.integration.engine_state import restart, running_requests

if TYPE_CHECKING:
    from coordinator.local_cluster import LocalCluster

pytestmark = [pytest.mark.vllm_cpu, pytest.mark.nixl, pytest.mark.faults]

QUESTION = [{"role": "user", "content": "Count the handlers. " * 40}]
MAX_TOKENS = 24


@pytest.fixture
def agent(tiny_pd: LocalCluster) -> Agent:
    return Agent(tiny_pd.url, tenant=uuid4().hex, session=uuid4().hex, shadow=False)


@pytest.fixture(scope="module")
def expected(tiny_pd: LocalCluster) -> Answer:
    agent = Agent(tiny_pd.url, tenant=uuid4().hex, session="base", shadow=False)
    return agent.call("tiny-a", QUESTION, MAX_TOKENS)


def test_a_client_that_leaves_stops_its_own_call_and_no_other(
    tiny_pd: LocalCluster, agent: Agent, expected: Answer
) -> None:
    other: list[Answer] = []
    neighbour = Agent(tiny_pd.url, tenant=uuid4().hex, session="other", shadow=False)
    thread = threading.Thread(
        target=lambda: other.append(neighbour.call("tiny-a", QUESTION, MAX_TOKENS))
    )
    body = {"model": "tiny-a", "messages": QUESTION, "max_tokens": 4000, "ignore_eos": True}
    with agent.stream(body) as answer:
        next(answer.iter_lines())
        thread.start()
    thread.join()
    until(lambda: running_requests(tiny_pd, "tiny-a-d"), lambda running: running == 0)
    assert other[0].token_ids == expected.token_ids


def test_a_dead_p_costs_a_recompute_on_d_and_no_answer(
    healed: LocalCluster, agent: Agent, expected: Answer
) -> None:
    healed.kill("tiny-a-p", signal.SIGKILL)
    assert agent.call("tiny-a", QUESTION, MAX_TOKENS).token_ids == expected.token_ids
    restart(healed, "tiny-a-p")
    assert agent.call("tiny-a", QUESTION, MAX_TOKENS).token_ids == expected.token_ids


def test_a_d_that_dies_in_the_middle_gives_an_error_frame_and_no_stop(
    healed: LocalCluster, agent: Agent, expected: Answer
) -> None:
    body = {"model": "tiny-a", "messages": QUESTION, "max_tokens": 4000, "ignore_eos": True}
    lines = []
    with agent.stream(body) as answer:
        for line in answer.iter_lines():
            if not lines:
                healed.kill("tiny-a-d", signal.SIGKILL)
            lines.append(line)
    frames = [line for line in lines if line]
    assert '"error"' in frames[-1]
    assert "data: [DONE]" not in frames
    assert not any('"finish_reason":"stop"' in frame for frame in frames)

    refused = agent.request("POST", "/v1/chat/completions", json=body | {"max_tokens": 4})
    assert refused.status_code in (502, 503)
    assert refused.json()["error"]["message"]

    restart(healed, "tiny-a-d")
    assert agent.call("tiny-a", QUESTION, MAX_TOKENS).token_ids == expected.token_ids


def test_a_frozen_p_is_given_up_within_the_configured_time(
    healed: LocalCluster, agent: Agent, expected: Answer
) -> None:
    healed.kill("tiny-a-p", signal.SIGSTOP)
    try:
        answer = agent.call("tiny-a", QUESTION, MAX_TOKENS)
    finally:
        healed.kill("tiny-a-p", signal.SIGCONT)
    assert answer.token_ids == expected.token_ids
    until(lambda: running_requests(healed, "tiny-a-p"), lambda running: running == 0)
    assert agent.call("tiny-a", QUESTION, MAX_TOKENS).token_ids == expected.token_ids


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"model": "no-such-model", "messages": QUESTION}, 404),
        ({"model": "tiny-a", "messages": QUESTION, "max_tokens": -1}, 400),
        ({"model": "tiny-a", "messages": [{"role": "user", "content": "word " * 9000}]}, 400),
        ({"model": "tiny-a"}, 400),
    ],
    ids=["unknown_model", "negative_max_tokens", "longer_than_the_context", "no_messages"],
)
def test_bad_input_is_refused_with_an_openai_error(
    agent: Agent, body: dict[str, object], status: int
) -> None:
    answer = agent.request("POST", "/v1/chat/completions", json=body)
    assert answer.status_code == status, answer.text
    assert set(answer.json()["error"]) >= {"message", "type", "param", "code"}
