"""The Responses and the Messages API of real engines: the same call as a chat, in other words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from coordinator.calls import CallKind
from tests.coordinator.api_calls import (
    NAMED,
    a_body,
    answered,
    end_of,
    named_events,
    prompt_and_cached,
    streamed_text,
)
from tests.integration.client import Agent

if TYPE_CHECKING:
    from coordinator.local_cluster import LocalCluster

pytestmark = [pytest.mark.vllm_cpu, pytest.mark.nixl]

QUESTION = {"role": "user", "content": "Which handler is it? " * 40}
GREEDY = {"temperature": 0}
TOKENS = 12
BLOCK_TOKENS = 32


def post(agent: Agent, kind: CallKind, model: str, messages: list[Any], **more: Any) -> Any:
    body = a_body(kind, messages, model=model, **{kind.limit_field: TOKENS}, **GREEDY, **more)
    reply = agent.request("POST", kind.path, json=body)
    assert reply.status_code == 200, reply.text
    return reply


def words(kind: CallKind, body: dict[str, Any]) -> str:
    items = body["output"] if kind is CallKind.RESPONSES else [body]
    return "".join(part.get("text") or "" for item in items for part in item["content"])


@pytest.mark.parametrize("kind", NAMED)
def test_both_legs_the_stream_and_a_switch_work_as_for_a_chat(
    tiny_pd: LocalCluster, kind: CallKind
) -> None:
    chat = Agent(tiny_pd.url, tenant=uuid4().hex, session="chat", shadow=False)
    same = post(chat, CallKind.CHAT, "tiny-a", [QUESTION]).json()

    agent = Agent(tiny_pd.url, tenant=uuid4().hex, session=kind.value)
    whole = post(agent, kind, "tiny-a", [QUESTION]).json()
    assert words(kind, whole) == same["choices"][0]["message"]["content"]
    assert prompt_and_cached(kind, whole) == (same["usage"]["prompt_tokens"], 0)
    call = agent.detail()["calls"][0]
    assert (call["p_instance"], call["d_instance"]) == ("tiny-a-p", "tiny-a-d")
    assert call["output_tokens"] == same["usage"]["completion_tokens"]

    reply = post(agent, kind, "tiny-a", [QUESTION], stream=True)
    events = named_events(reply.content)
    assert events[-1][0] == end_of(kind), json.dumps(events[-3:])
    assert streamed_text(kind, events) == words(kind, whole)
    assert agent.detail()["calls"][1]["cached_tokens"] > 0

    shadow = agent.settled("tiny-b")
    history = [QUESTION, *answered(kind, whole), {"role": "user", "content": "And then?"}]
    switched = post(agent, kind, "tiny-b", history).json()
    prompt_tokens, cached_tokens = prompt_and_cached(kind, switched)
    assert cached_tokens == shadow["covered_tokens"]
    assert prompt_tokens - cached_tokens < 3 * BLOCK_TOKENS, "all but the new question"
