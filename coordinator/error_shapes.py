"""How an error is told in the shape of the API that the client speaks.

OpenAI's endpoints share one object; a stream of theirs reports it as its last event, and the
Responses API numbers its events. Anthropic's object has types of its own. Host:
coordinator.openai_api, coordinator.hot_protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from coordinator.calls import CallKind
from coordinator.errors import EngineRejected, unicode_of

if TYPE_CHECKING:
    from coordinator.errors import CallError

_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Of Anthropic's API, by status."""


def error_body(kind: CallKind, error: CallError) -> bytes:
    """The body of an answer that is an error."""
    if kind is not CallKind.MESSAGES:
        return error.body()
    if isinstance(error, EngineRejected) and error.says("type") == "error":
        return error.body()
    return msgspec.json.encode(_anthropic(error))


def error_event(kind: CallKind, error: CallError, number: int) -> bytes:
    """What a client sees when a stream cannot go on: none of the events that end an answer.
    `number`: of events before it."""
    if kind is CallKind.MESSAGES:
        return b"event: error\ndata: %b\n\n" % msgspec.json.encode(_anthropic(error))
    if kind is not CallKind.RESPONSES:
        return b"data: %b\n\n" % error.body()
    event = {
        "type": "error",
        "code": error.code or error.type,
        "message": unicode_of(str(error)),
        "param": None if error.param is None else unicode_of(error.param),
        "sequence_number": number,
    }
    return b"event: error\ndata: %b\n\n" % msgspec.json.encode(event)


def _anthropic(error: CallError) -> dict[str, Any]:
    kind = _TYPES.get(error.status)
    if kind is None:
        kind = "invalid_request_error" if error.status < 500 else "api_error"
    return {"type": "error", "error": {"type": kind, "message": unicode_of(_message(error))}}


def _message(error: CallError) -> str:
    if isinstance(error, EngineRejected):
        said = error.says("error")
        if isinstance(said, dict) and isinstance(said.get("message"), str):
            return str(said["message"])
    return str(error)
