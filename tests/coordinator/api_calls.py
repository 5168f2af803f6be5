"""The same call in the words of each API, and what an answer of each says."""

from __future__ import annotations

import json
from typing import Any

from coordinator.calls import CallKind

NAMED = (CallKind.RESPONSES, CallKind.MESSAGES)
"""The APIs whose streams name their events."""

TOOL_PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}}


def a_body(kind: CallKind, messages: list[Any], **fields: Any) -> dict[str, Any]:
    if kind is CallKind.RESPONSES:
        return {"model": "small", "input": messages, "max_output_tokens": 4} | fields
    return {"model": "small", "messages": messages, "max_tokens": 4} | fields


def a_question(text: str = "hello there") -> dict[str, Any]:
    return {"role": "user", "content": text}


def a_tool(kind: CallKind, name: str) -> dict[str, Any]:
    if kind is CallKind.MESSAGES:
        return {"name": name, "input_schema": TOOL_PARAMETERS}
    if kind is CallKind.RESPONSES:
        return {"type": "function", "name": name, "parameters": TOOL_PARAMETERS}
    return {"type": "function", "function": {"name": name, "parameters": TOOL_PARAMETERS}}


def answered(kind: CallKind, body: dict[str, Any]) -> list[Any]:
    """What a client sends back of a whole answer, ahead of its next message."""
    if kind is CallKind.RESPONSES:
        return list(body["output"])
    if kind is CallKind.MESSAGES:
        return [{"role": "assistant", "content": body["content"]}]
    return [body["choices"][0]["message"]]


def results(kind: CallKind, call_id: str, text: str) -> list[Any]:
    if kind is CallKind.RESPONSES:
        return [{"type": "function_call_output", "call_id": call_id, "output": text}]
    if kind is CallKind.MESSAGES:
        block = {"type": "tool_result", "tool_use_id": call_id, "content": text}
        return [{"role": "user", "content": [block]}]
    return [{"role": "tool", "tool_call_id": call_id, "content": text}]


def text_in(kind: CallKind, body: dict[str, Any]) -> str:
    if kind is CallKind.RESPONSES:
        return str(body["output"][0]["content"][0]["text"])
    if kind is CallKind.MESSAGES:
        return str(body["content"][0]["text"])
    return str(body["choices"][0]["message"]["content"])


def prompt_and_cached(kind: CallKind, body: dict[str, Any]) -> tuple[int, int]:
    usage = body["usage"]
    if kind is CallKind.RESPONSES:
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
    if kind is CallKind.MESSAGES:
        cached = usage.get("cache_read_input_tokens", 0)
        return usage["input_tokens"] + cached, cached
    return usage["prompt_tokens"], (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)


def named_events(stream: bytes) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for event in stream.decode().split("\n\n"):
        if event:
            head, _, data = event.partition("\ndata: ")
            found.append((head.removeprefix("event: "), json.loads(data)))
    return found


def streamed_text(kind: CallKind, events: list[tuple[str, dict[str, Any]]]) -> str:
    if kind is CallKind.RESPONSES:
        return "".join(data["delta"] for name, data in events if name.endswith("text.delta"))
    deltas = [data["delta"] for name, data in events if name == "content_block_delta"]
    return "".join(delta.get("text", "") for delta in deltas)


def end_of(kind: CallKind) -> str:
    return "response.completed" if kind is CallKind.RESPONSES else "message_stop"
