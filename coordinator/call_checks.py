"""What the fields of a body must say so that no engine refuses it after another one has worked.

P is asked for one token, so limits that only D would see are checked here; and nothing may be asked
for that one engine would have to remember for another. Pure. Host: coordinator.call_body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from coordinator.calls import CallKind
from coordinator.errors import BodyInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

Fields = dict[str, msgspec.Raw]

_decode_any = msgspec.json.Decoder().decode

_PROMPT_STARTS: Final[Mapping[CallKind, tuple[tuple[bytes, ...], str]]] = {
    CallKind.CHAT: ((b"[",), "a list"),
    CallKind.TEXT: ((b"[", b'"'), "a string or a list"),
    CallKind.RESPONSES: ((b"[", b'"'), "a string or a list"),
    CallKind.MESSAGES: ((b"[",), "a list"),
}
_LIMITS: Final[Mapping[CallKind, tuple[tuple[str, int], ...]]] = {
    CallKind.CHAT: (("max_tokens", 1), ("max_completion_tokens", 1), ("min_tokens", 0)),
    CallKind.TEXT: (("max_tokens", 1), ("max_completion_tokens", 1), ("min_tokens", 0)),
    CallKind.RESPONSES: (("max_output_tokens", 1),),
    CallKind.MESSAGES: (("max_tokens", 1),),
}
_NEEDS_MEMORY: Final = (
    ("previous_response_id", "send the whole input instead"),
    ("background", "ask for a stream instead"),
)
_CALLERS_TOOLS: Final = frozenset({"function", "custom", "namespace"})
"""Types of tools that the client runs; the others run inside an engine."""


class _Tool(msgspec.Struct):
    type: str = ""


class _Thinking(msgspec.Struct):
    budget_tokens: int | None = None


_decode_tools = msgspec.json.Decoder(list[_Tool]).decode
_decode_thinking = msgspec.json.Decoder(_Thinking | None).decode


def check_fields(kind: CallKind, fields: Fields) -> None:
    """Raises BodyInvalid."""
    _require_prompt(kind, fields)
    limits = {name: integer(fields, name, least) for name, least in _LIMITS[kind] if name in fields}
    if kind is CallKind.MESSAGES:
        _check_messages(fields, limits.get("max_tokens"))
    elif kind is CallKind.RESPONSES:
        _check_responses(fields)
    else:
        _check_least(limits)


def runs_tools(tools: msgspec.Raw | None) -> bool:
    """Whether an engine might go on by itself after a tool of its own: more than one prompt then,
    and a hand-off is for one."""
    if tools is None or bytes(tools) == b"null":
        return False
    try:
        return any(tool.type not in _CALLERS_TOOLS for tool in _decode_tools(tools))
    except msgspec.DecodeError:
        return True  # for the engine to refuse


def integer(fields: Fields, name: str, least: int) -> int | None:
    """Raises BodyInvalid."""
    value = _decode_any(fields[name])
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BodyInvalid(f"{name} must be an integer >= {least}, got {value!r:.40}", name)
    return value


def _require_prompt(kind: CallKind, fields: Fields) -> None:
    name = kind.prompt_field
    starts, what = _PROMPT_STARTS[kind]
    raw = fields.get(name)
    if raw is None or bytes(memoryview(raw)[:1]) not in starts:
        raise BodyInvalid(f"{name} is required and must be {what}", name)


def _check_least(limits: Mapping[str, int | None]) -> None:
    most = limits.get("max_completion_tokens") or limits.get("max_tokens")
    least = limits.get("min_tokens")
    if least is not None and most is not None and least > most:
        raise BodyInvalid(f"min_tokens must be <= {most} (max tokens), got {least}", "min_tokens")


def _check_messages(fields: Fields, max_tokens: int | None) -> None:
    if max_tokens is None:
        raise BodyInvalid("max_tokens is required and must be an integer >= 1", "max_tokens")
    try:
        thinking = _decode_thinking(fields.get("thinking", b"null"))
    except msgspec.DecodeError as error:
        raise BodyInvalid(f"thinking: {error}", "thinking") from None
    budget = None if thinking is None else thinking.budget_tokens
    if budget is not None and budget >= max_tokens:
        text = f"thinking.budget_tokens must be < {max_tokens} (max_tokens), got {budget}"
        raise BodyInvalid(text, "thinking")


def _check_responses(fields: Fields) -> None:
    for name, instead in _NEEDS_MEMORY:
        if bytes(fields.get(name, b"null")) not in (b"null", b"false"):
            text = f"{name} is not supported, because engines share no stored answers: {instead}"
            raise BodyInvalid(text, name)
