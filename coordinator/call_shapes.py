"""The calls in the coordinator's OpenAPI: FastAPI does not serve them, so it does not know them.

Only what we ourselves ask of a body; the rest passes to the engine. Host: coordinator.app."""

from __future__ import annotations

from typing import Any, Final

from coordinator.calls import CallKind

_ABOUT: Final = {
    CallKind.CHAT: "OpenAI Chat Completions",
    CallKind.TEXT: "OpenAI Completions",
    CallKind.RESPONSES: "OpenAI Responses, without stored answers",
    CallKind.MESSAGES: "Anthropic Messages",
}
_LIST: Final = {"type": "array", "items": {"type": "object"}}
_PROMPTS: Final = {
    CallKind.CHAT: _LIST,
    CallKind.TEXT: {
        "anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]}},
        ]
    },
    CallKind.RESPONSES: {"anyOf": [{"type": "string"}, _LIST]},
    CallKind.MESSAGES: _LIST,
}
_HEADERS: Final = (
    ("x-session-id", "The session that the call belongs to"),
    ("x-shadowprefill-shadow", "`off`: no shadow work for this session"),
    ("x-shadowprefill-task-kind", "What sort of task the session is"),
)


def call_paths() -> dict[str, Any]:
    return {kind.path: {"post": _operation(kind)} for kind in CallKind}


def _operation(kind: CallKind) -> dict[str, Any]:
    refused = {"description": "Refused, in the error shape of this API"}
    return {
        "summary": _ABOUT[kind],
        "operationId": f"call_{kind.value}",
        "tags": ["calls"],
        "parameters": [
            {"name": name, "in": "header", "description": text, "schema": {"type": "string"}}
            for name, text in _HEADERS
        ],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _body(kind)}},
        },
        "responses": {
            "200": {
                "description": "The engine's answer",
                "content": {"application/json": {}, "text/event-stream": {}},
            },
            "4XX": refused,
            "5XX": {"description": "No engine could serve it, in the same shape"},
        },
    }


def _body(kind: CallKind) -> dict[str, Any]:
    required = ["model", kind.prompt_field]
    if kind is CallKind.MESSAGES:
        required.append(kind.limit_field)
    return {
        "type": "object",
        "required": required,
        "properties": {
            "model": {"type": "string", "description": "A model key, or `auto`"},
            kind.prompt_field: _PROMPTS[kind],
            kind.limit_field: {"type": "integer", "minimum": 1},
            "stream": {"type": "boolean"},
        },
        "additionalProperties": True,
    }
