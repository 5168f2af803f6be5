"""The client's side of one chat session: its messages, and an answer as it streams.

Host: coordinator.cli_chat."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from coordinator.api_client import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from http.client import HTTPResponse

    from coordinator.api_client import ApiClient

_PATH: Final = "/v1/chat/completions"
_SILENCE_S: Final = 900.0
"""Longer than any limit of the coordinator: it says itself what took too long."""


class AnswerBroken(ApiError):
    """Bytes were out already: the turn is not part of the conversation."""


@dataclass(slots=True, kw_only=True)
class Turn:
    """One answer: what came, from where, and how fast."""

    session_id: str
    model: str = ""
    p_instance: str = ""
    d_instance: str = ""
    text: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    ttft_ms: float | None = None
    e2el_ms: float | None = None
    finish_reason: str | None = None


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Error(msgspec.Struct):
    message: str


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Event).decode


@dataclass(slots=True, kw_only=True)
class Conversation:
    """A turn that fails or is given up leaves the messages as they were."""

    client: ApiClient
    session_id: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)
    """More fields of each call's body."""
    messages: list[dict[str, str]] = field(default_factory=list)

    def ask(self, text: str, turn: Turn) -> Iterator[str]:
        """The answer, piece by piece; `turn` is filled meanwhile. Raises ApiError."""
        messages = [*self.messages, {"role": "user", "content": text}]
        body = {
            "model": self.model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.options,
        }
        headers = {"x-session-id": self.session_id, "accept": "text/event-stream"}
        asked_s = time.monotonic()
        with self.client.stream(_PATH, body, headers, _SILENCE_S) as answer:
            turn.model = answer.headers.get("x-shadowprefill-model", self.model)
            turn.p_instance = answer.headers.get("x-shadowprefill-p-instance", "")
            turn.d_instance = answer.headers.get("x-shadowprefill-d-instance", "")
            for event in _events(answer):
                piece = _read(event, turn)
                if piece and turn.ttft_ms is None:
                    turn.ttft_ms = _ms_since(asked_s)
                if piece:
                    turn.text += piece
                    yield piece
        turn.e2el_ms = _ms_since(asked_s)
        self.messages = [*messages, {"role": "assistant", "content": turn.text}]


def _events(answer: HTTPResponse) -> Iterator[_Event]:
    """Until `[DONE]`; raises AnswerBroken for an answer without."""
    for line in answer:
        data = line.strip().removeprefix(b"data:").strip()
        if data == b"[DONE]":
            return
        if data:
            try:
                yield _decode(data)
            except msgspec.MsgspecError as error:
                raise AnswerBroken(f"the stream holds what is no event: {error}") from None
    raise AnswerBroken("the answer ended before it was complete")


def _read(event: _Event, turn: Turn) -> str:
    if event.error is not None:
        raise AnswerBroken(event.error.message)
    if event.usage is not None:
        details = event.usage.prompt_tokens_details
        turn.prompt_tokens = event.usage.prompt_tokens
        turn.output_tokens = event.usage.completion_tokens
        turn.cached_tokens = (details.cached_tokens if details else None) or 0
    if not event.choices:
        return ""
    choice = event.choices[0]
    turn.finish_reason = choice.finish_reason or turn.finish_reason
    return choice.delta.content or ""


def _ms_since(start_s: float) -> float:
    return round((time.monotonic() - start_s) * 1000, 3)
