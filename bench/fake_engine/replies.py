"""The shapes of vLLM 0.32's answers, as the fake engine gives them. Host: bench.fake_engine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.push_ask import answer_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engine.push_ask import PushAnswer

CREATED_S = 1_700_000_000
DONE = b"data: [DONE]\n\n"


class EngineError(Exception):
    """A request that vLLM would answer with an error object."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param

    def body(self) -> dict[str, Any]:
        kinds = {400: "BadRequestError", 404: "NotFoundError", 503: "ServiceUnavailableError"}
        kind = kinds.get(self.status, "InternalServerError")
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.status}
        return {"error": error}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one request generated."""

    model: str
    is_chat: bool
    request_id: str
    prompt_ids: list[int]
    cached_tokens: int
    pieces: list[str]
    piece_ids: list[int]
    finish_reason: str
    with_usage: bool
    with_token_ids: bool
    tool_call: dict[str, Any] | None = None
    queue_time_ms: float | None = None
    kv_transfer_params: dict[str, Any] | None = None

    def usage(self) -> dict[str, Any]:
        details = {"cached_tokens": self.cached_tokens} if self.cached_tokens else None
        prompt_tokens, completion_tokens = len(self.prompt_ids), len(self.pieces)
        return {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "completion_tokens": completion_tokens,
            "prompt_tokens_details": details,
        }

    def whole(self) -> dict[str, Any]:
        """The body of a call without `stream`."""
        kind = "chat.completion" if self.is_chat else "text_completion"
        ids = self.prompt_ids if self.with_token_ids else None
        choice = self._whole_choice()
        if not self.is_chat:
            choice["prompt_token_ids"] = ids
        reply = self._head(kind) | {"choices": [choice], "usage": self.usage()}
        if self.is_chat:
            reply["prompt_token_ids"] = ids
        return reply | self._metrics() | {"kv_transfer_params": self.kv_transfer_params}

    def chunks(self) -> Iterator[bytes]:
        """The SSE events of a call with `stream`, one per generated token, `[DONE]` included. The
        first one names the prompt's tokens: of a chat beside the choices, of a text inside."""
        ids = {"prompt_token_ids": self.prompt_ids if self.with_token_ids else None}
        if self.is_chat:
            yield self._chunk({"delta": {"role": "assistant", "content": ""}}, None, **ids)
        last = len(self.pieces) - 1
        for at, piece in enumerate(self.pieces):
            reason = "length" if at == last and self.finish_reason == "length" else None
            prompt = ids if at == 0 and not self.is_chat else {}
            yield self._chunk(self._delta(piece, [self.piece_ids[at]]) | prompt, reason)
        if self.tool_call is not None:
            call = {"index": 0, "id": "call-0", "type": "function", "function": self.tool_call}
            yield self._chunk({"delta": {"tool_calls": [call]}}, None)
        if self.finish_reason != "length":
            yield self._chunk(self._delta("", []), self.finish_reason)
        if self.with_usage:
            end = {"choices": [], "usage": self.usage()} | self._metrics()
            yield sse(self._head(self._chunk_kind()) | end)
        yield DONE

    def _metrics(self) -> dict[str, Any]:
        known = self.queue_time_ms is not None
        return {"metrics": {"queue_time_ms": self.queue_time_ms}} if known else {}

    def _whole_choice(self) -> dict[str, Any]:
        text = "".join(self.pieces)
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "stop_reason": None}
        choice["finish_reason"] = self.finish_reason
        choice["token_ids"] = self.piece_ids if self.with_token_ids else None
        if not self.is_chat:
            return choice | {"text": text}
        message: dict[str, Any] = {"role": "assistant", "content": text, "reasoning": None}
        if self.tool_call is not None:
            call = {"id": "call-0", "type": "function", "function": self.tool_call}
            message["tool_calls"] = [call]
        return choice | {"message": message}

    def _delta(self, piece: str, ids: list[int]) -> dict[str, Any]:
        shown = ids if self.with_token_ids else None
        text = {"delta": {"content": piece}} if self.is_chat else {"text": piece}
        return text | {"token_ids": shown}

    def _chunk(self, choice: dict[str, Any], finish_reason: str | None, **beside: Any) -> bytes:
        fixed = {"index": 0, "logprobs": None, "finish_reason": finish_reason}
        return sse(self._head(self._chunk_kind()) | {"choices": [fixed | choice]} | beside)

    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.is_chat else "text_completion"

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.request_id, "object": kind, "created": CREATED_S, "model": self.model}


def sse(event: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"


def rendered(body: dict[str, Any], ids: list[int], request_id: str) -> dict[str, Any]:
    """vLLM's GenerateRequest: the answer of the two render endpoints."""
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    return {
        "request_id": request_id,
        "token_ids": ids,
        "token_offsets": None,
        "features": None,
        "sampling_params": {"n": 1, "temperature": body.get("temperature"), "max_tokens": limit},
        "model": body.get("model"),
        "stream": bool(body.get("stream")),
        "stream_options": body.get("stream_options") if body.get("stream") else None,
        "cache_salt": body.get("cache_salt"),
        "priority": body.get("priority", 0),
        "kv_transfer_params": None,
    }


def controlled(model: str, changes: dict[str, Any]) -> dict[str, Any]:
    """The answer to a control request of ours; `refuse` as controller is refused."""
    is_refused = changes.get("controller") == "refuse"
    reason = "control_refused: controller; nothing was changed" if is_refused else "control_applied"
    choice = {"index": 0, "text": "", "finish_reason": "abort", "stop_reason": reason}
    return {"object": "text_completion", "model": model, "choices": [choice]}


def aborted(model: str) -> dict[str, Any]:
    """The answer to a request that was aborted before its first token: it hands nothing over."""
    choice = {"index": 0, "finish_reason": "abort", "stop_reason": None}
    return {"model": model, "choices": [choice], "kv_transfer_params": None}


def asked(model: str, answer: PushAnswer) -> dict[str, Any]:
    """What a decode instance says to an ask for a push."""
    reason = answer_text(answer)
    choice = {"index": 0, "text": "", "finish_reason": "stop", "stop_reason": reason}
    return {"object": "text_completion", "model": model, "choices": [choice]}


def model_list(model: str, max_model_len: int) -> dict[str, Any]:
    card = {
        "id": model,
        "object": "model",
        "created": CREATED_S,
        "owned_by": "vllm",
        "root": model,
        "parent": None,
        "max_model_len": max_model_len,
    }
    return {"object": "list", "data": [card]}
