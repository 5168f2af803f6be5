"""What a learned router looks at in a prompt: four texts, and a few numbers of the step.

Training and the coordinator see the prompt through this one module, and nothing else of the call:
which model served it must not teach the router what the router did.

Pure. Hosts: routing.samples, routing.step_vectors, coordinator.learned_router."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from typing import Any, Final

import msgspec

PIECE_CHARS: Final = 1024
"""About 256 tokens, the longest text that MiniLM was made for."""
TAIL_PIECES: Final = 16
"""About the last 4K tokens."""
HISTORY_STEPS: Final = 12
HISTORY_STEP_CHARS: Final = 80

_FAILURE = re.compile(r"error|exception|traceback|failed|not found|no such", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTexts:
    """Pieces of each text, in its own order; empty where the prompt has none.

    Pieces are cut from the start of a message, so that those of old messages stay the same from
    call to call and need not be embedded again."""

    tail: tuple[str, ...] = ()
    """The last 4K tokens."""
    action: tuple[str, ...] = ()
    """What the agent did last."""
    observation: tuple[str, ...] = ()
    """What came back since."""
    history: tuple[str, ...] = ()
    """One short line per earlier step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNumbers:
    """Lengths as logarithms: a prompt of 60K tokens is not sixty times one of 1K."""

    log_prompt_chars: float
    log_messages: float
    log_steps: float
    log_action_chars: float
    log_observation_chars: float
    action_calls_tool: float
    observation_fails: float


TEXTS: Final = tuple(field.name for field in fields(StepTexts))
NUMBERS: Final = tuple(field.name for field in fields(StepNumbers))


@dataclass(frozen=True, slots=True)
class StepView:
    texts: StepTexts
    numbers: StepNumbers


def step_view(prompt_json: bytes) -> StepView:
    """Of a chat's `messages` or a completion's `prompt`. Never raises: what the engine will refuse
    looks like an empty prompt here."""
    try:
        prompt = msgspec.json.decode(prompt_json)
    except msgspec.DecodeError:
        prompt = []
    messages = _messages(prompt)
    actions = [at for at, message in enumerate(messages) if message.role == "assistant"]
    last = actions[-1] if actions else None
    action = messages[last].text if last is not None else ""
    observation = "\n".join(m.text for m in messages[last + 1 :]) if last is not None else ""
    texts = StepTexts(
        tail=_tail([message.text for message in messages]),
        action=_start(action),
        observation=_start(observation),
        history=_start(_history([messages[at].text for at in actions[:-1]])),
    )
    numbers = StepNumbers(
        log_prompt_chars=math.log1p(sum(len(message.text) for message in messages)),
        log_messages=math.log1p(len(messages)),
        log_steps=math.log1p(len(actions)),
        log_action_chars=math.log1p(len(action)),
        log_observation_chars=math.log1p(len(observation)),
        action_calls_tool=float(last is not None and messages[last].calls_tool),
        observation_fails=float(_FAILURE.search(observation) is not None),
    )
    return StepView(texts, numbers)


@dataclass(frozen=True, slots=True)
class _Message:
    role: str
    text: str
    calls_tool: bool = False


def _messages(prompt: Any) -> list[_Message]:
    if isinstance(prompt, str):
        return [_Message("user", prompt)]
    if not isinstance(prompt, list):
        return []
    return [_message(item) for item in prompt if isinstance(item, str | dict)]


def _message(item: str | dict[str, Any]) -> _Message:
    if isinstance(item, str):
        return _Message("user", item)
    calls = item.get("tool_calls")
    calls = [_tool_call(call) for call in calls] if isinstance(calls, list) else []
    text = "\n".join(part for part in (_text(item.get("content")), *calls) if part)
    return _Message(str(item.get("role")), text, bool(calls))


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [part.get("text") for part in content if isinstance(part, dict)]
    return "\n".join(part for part in parts if isinstance(part, str))


def _tool_call(call: Any) -> str:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return ""
    return f"{function.get('name')} {function.get('arguments')}"


def _tail(texts: list[str]) -> tuple[str, ...]:
    kept: list[str] = []
    for text in reversed(texts):
        kept += reversed(_pieces(text))
        if len(kept) >= TAIL_PIECES:
            break
    return tuple(reversed(kept[:TAIL_PIECES]))


def _pieces(text: str) -> list[str]:
    return [text[at : at + PIECE_CHARS] for at in range(0, len(text), PIECE_CHARS)]


def _start(text: str) -> tuple[str, ...]:
    return (text[:PIECE_CHARS],) if text else ()


def _history(actions: list[str]) -> str:
    lines = [" ".join(text.split())[:HISTORY_STEP_CHARS] for text in actions[-HISTORY_STEPS:]]
    return "\n".join(line for line in lines if line)
