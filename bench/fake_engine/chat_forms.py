"""Bodies of vLLM's Responses and Messages API as the chat that its front end makes of them.

Reduced to what the fake templates can see. Host: bench.fake_engine.model."""

from __future__ import annotations

import json
from typing import Any

Body = dict[str, Any]
Messages = list[dict[str, Any]]

_KEPT = ("stream", "cache_salt", "vllm_xargs", "kv_transfer_params", "ignore_eos")


def as_chat(path: str, body: Body) -> Body:
    """The body itself for every other path."""
    if path.startswith("/v1/messages"):
        messages = _system(body.get("system")) + _of_messages(body.get("messages"))
        return _chat(body, messages, body.get("max_tokens"), _tools(body, "input_schema"))
    if path.startswith("/v1/responses"):
        messages = _system(body.get("instructions")) + _of_items(body.get("input"))
        return _chat(body, messages, body.get("max_output_tokens"), _tools(body, "parameters"))
    return body


def _chat(body: Body, messages: Messages, limit: int | None, tools: list[Body]) -> Body:
    chat = {name: body[name] for name in _KEPT if name in body}
    if limit is not None:
        chat["max_tokens"] = limit
    if tools:
        chat["tools"] = tools
    return chat | {"messages": messages, "stream_options": {"include_usage": True}}


def _tools(body: Body, parameters: str) -> list[Body]:
    return [
        {"type": "function", "function": {"name": tool["name"], "parameters": tool.get(parameters)}}
        for tool in body.get("tools") or ()
    ]


def _system(system: Any) -> Messages:
    if not system:
        return []
    text = system if isinstance(system, str) else "".join(block["text"] for block in system)
    return [{"role": "system", "content": text}]


def _of_messages(messages: Any) -> Messages:
    chat: Messages = []
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message["content"], str):
            chat.append({"role": message["role"], "content": message["content"]})
            continue
        said: dict[str, Any] = {"role": message["role"]}
        for block in message["content"]:
            _take_block(block, said, chat)
        if len(said) > 1 or message["role"] == "assistant":
            chat.append(said)
    return chat


def _take_block(block: Body, said: dict[str, Any], chat: Messages) -> None:
    if block["type"] == "text":
        said["content"] = said.get("content", "") + block["text"]
    elif block["type"] == "thinking":
        said["reasoning"] = said.get("reasoning", "") + block["thinking"]
    elif block["type"] == "tool_use":
        call = {"name": block["name"], "arguments": json.dumps(block["input"])}
        said.setdefault("tool_calls", []).append({"id": block["id"], "function": call})
    elif block["type"] == "tool_result":
        result = {"role": "tool", "tool_call_id": block["tool_use_id"]}
        chat.append(result | {"content": block.get("content") or ""})


def _of_items(items: Any) -> Messages:
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    chat: Messages = []
    for item in items if isinstance(items, list) else ():
        kind = item.get("type", "message")
        if kind == "function_call_output":
            result = {"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]}
            chat.append(result)
        elif kind == "message" and item["role"] != "assistant":
            chat.append({"role": item["role"], "content": item["content"]})
        else:
            _take_item(kind, item, chat)
    return chat


def _take_item(kind: str, item: Body, chat: Messages) -> None:
    """Pieces of one answer become one message, as far as they go together."""
    if kind == "function_call":
        call = {"name": item["name"], "arguments": item["arguments"]}
        said = _open_answer(chat, "")
        said.setdefault("tool_calls", []).append({"id": item["call_id"], "function": call})
        return
    name = "reasoning" if kind == "reasoning" else "content"
    content = item.get("content")
    text = content if isinstance(content, str) else content[0]["text"] if content else ""
    _open_answer(chat, name)[name] = text


def _open_answer(chat: Messages, lacking: str) -> dict[str, Any]:
    if not chat or chat[-1]["role"] != "assistant" or lacking in chat[-1]:
        chat.append({"role": "assistant"})
    return chat[-1]
