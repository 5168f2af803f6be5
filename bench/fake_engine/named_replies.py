"""vLLM 0.32's answers to the Responses and the Messages API. Host: bench.fake_engine.app."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bench.fake_engine.replies import CREATED_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bench.fake_engine.replies import Answer

Body = dict[str, Any]


def whole_of(path: str, answer: Answer) -> Body:
    """The body of a call without `stream`."""
    if path == "/v1/messages":
        return _message(answer)
    if path == "/v1/responses":
        return _response(answer, _status(answer), _items(answer))
    return answer.whole()


def chunks_of(path: str, answer: Answer) -> Iterable[bytes]:
    """The SSE events of a call with `stream`, the one that ends it included."""
    if path == "/v1/messages":
        return _message_events(answer)
    if path == "/v1/responses":
        return _response_events(answer)
    return answer.chunks()


def message_error(error: Body) -> Body:
    """As its Messages API tells an error."""
    told = {"type": error["error"]["type"], "message": error["error"]["message"]}
    return {"type": "error", "error": told}


def _event(name: str, body: Body) -> bytes:
    data = json.dumps({"type": name} | body, separators=(",", ":"))
    return f"event: {name}\ndata: {data}\n\n".encode()


# --- Messages


def _message(answer: Answer) -> Body:
    blocks: list[Body] = [{"type": "text", "text": "".join(answer.pieces)}]
    if answer.tool_call is not None:
        call = answer.tool_call
        block = {"type": "tool_use", "id": "call-0", "name": call["name"]}
        blocks.append(block | {"input": json.loads(call["arguments"])})
    body = _message_head(answer) | {"content": blocks, "stop_reason": _stop_reason(answer)}
    body["usage"] = _message_usage(answer)
    if answer.kv_transfer_params is not None:
        body["kv_transfer_params"] = answer.kv_transfer_params
    return body


def _message_events(answer: Answer) -> Iterator[bytes]:
    usage = {"input_tokens": len(answer.prompt_ids), "output_tokens": 0}
    start = _message_head(answer) | {"content": [], "stop_reason": None, "usage": usage}
    yield _event("message_start", {"message": start})
    yield _block_start(0, {"type": "text", "text": ""})
    for piece in answer.pieces:
        yield _block_delta(0, {"type": "text_delta", "text": piece})
    yield _event("content_block_stop", {"index": 0})
    if answer.tool_call is not None:
        block = {"type": "tool_use", "id": "call-0", "name": answer.tool_call["name"], "input": {}}
        yield _block_start(1, block)
        arguments = answer.tool_call["arguments"]
        yield _block_delta(1, {"type": "input_json_delta", "partial_json": arguments})
        yield _event("content_block_stop", {"index": 1})
    end = {"stop_reason": _stop_reason(answer), "stop_sequence": None}
    yield _event("message_delta", {"delta": end, "usage": _message_usage(answer)})
    yield _event("message_stop", {})


def _block_start(index: int, block: Body) -> bytes:
    return _event("content_block_start", {"index": index, "content_block": block})


def _block_delta(index: int, delta: Body) -> bytes:
    return _event("content_block_delta", {"index": index, "delta": delta})


def _message_head(answer: Answer) -> Body:
    return {
        "id": answer.request_id,
        "type": "message",
        "role": "assistant",
        "model": answer.model,
    }


def _message_usage(answer: Answer) -> Body:
    """What was found in the cache is told apart from the rest, and only if there is any."""
    usage = {
        "input_tokens": len(answer.prompt_ids) - answer.cached_tokens,
        "output_tokens": len(answer.pieces),
    }
    return usage | (
        {"cache_read_input_tokens": answer.cached_tokens} if answer.cached_tokens else {}
    )


def _stop_reason(answer: Answer) -> str:
    reasons = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn"}
    return reasons[answer.finish_reason]


# --- Responses


def _response(answer: Answer, status: str, items: list[Body]) -> Body:
    is_cut = status == "incomplete"
    return {
        "id": answer.request_id,
        "object": "response",
        "created_at": CREATED_S,
        "model": answer.model,
        "status": status,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": items,
        "usage": None if status == "in_progress" else _response_usage(answer),
        "kv_transfer_params": answer.kv_transfer_params,
    }


def _response_events(answer: Answer) -> Iterator[bytes]:
    for number, (name, body) in enumerate(_numbered(answer)):
        yield _event(name, body | {"sequence_number": number})


def _numbered(answer: Answer) -> Iterator[tuple[str, Body]]:
    items = _items(answer)
    opened = {"response": _response(answer, "in_progress", [])}
    yield "response.created", opened
    yield "response.in_progress", opened
    yield "response.output_item.added", {"output_index": 0, "item": items[0] | {"content": []}}
    for piece in answer.pieces:
        yield "response.output_text.delta", {"output_index": 0, "content_index": 0, "delta": piece}
    text = "".join(answer.pieces)
    yield "response.output_text.done", {"output_index": 0, "content_index": 0, "text": text}
    yield "response.output_item.done", {"output_index": 0, "item": items[0]}
    for item in items[1:]:
        arguments = item["arguments"]
        yield "response.output_item.added", {"output_index": 1, "item": item | {"arguments": ""}}
        yield "response.function_call_arguments.delta", {"output_index": 1, "delta": arguments}
        yield "response.output_item.done", {"output_index": 1, "item": item}
    yield "response.completed", {"response": _response(answer, _status(answer), items)}


def _items(answer: Answer) -> list[Body]:
    text = {"type": "output_text", "text": "".join(answer.pieces), "annotations": []}
    items: list[Body] = [
        {"type": "message", "id": "msg-0", "role": "assistant", "content": [text]}
        | {"status": "completed"}
    ]
    if answer.tool_call is not None:
        call = {"type": "function_call", "id": "fc-0", "call_id": "call-0", "namespace": None}
        items.append(call | answer.tool_call)
    return items


def _status(answer: Answer) -> str:
    return "incomplete" if answer.finish_reason == "length" else "completed"


def _response_usage(answer: Answer) -> Body:
    prompt_tokens, output_tokens = len(answer.prompt_ids), len(answer.pieces)
    return {
        "input_tokens": prompt_tokens,
        "input_tokens_details": {"cached_tokens": answer.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt_tokens + output_tokens,
    }
