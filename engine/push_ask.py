"""How the coordinator asks a decode instance whether shadow KV may be pushed to it, and what that
answers: an ordinary completion of the segment's tokens with a mark, answered at once.

P is asked for a hand-off only with a grant in hand, because it pins the blocks until they were
read. D looks up what it holds of the tokens, so the answer also corrects what the coordinator
believes.

Imports neither vLLM nor torch: the coordinator reads what the plug-in writes.

Hosts: engine.connector, coordinator.shadow_legs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from engine.marks import MarkInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

ASK_KEY = "shadowprefill_push"
ANSWERED = "push_answer: "
Count = Annotated[int, msgspec.Meta(ge=0)]


class PushAsk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    peer: str
    """Address of the P that would send, as its hand-offs name it."""
    normal_out: Count = 0
    """Normal transfers that leave that P now."""
    gives_back: bool = False
    """Not a question: the grant is not wanted any more."""


class PushAnswer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    reason: str
    """policy.link_gate.GateReason, or why no shadow work is done here at all."""
    tokens: Count = 0
    """That may be pushed now, after those that D holds; 0: not granted."""
    held_tokens: Count = 0


class AnswerUnreadable(ValueError):
    """Not the answer of one of our decode instances."""


def ask_xargs(ask: PushAsk) -> dict[str, str]:
    """The `vllm_xargs` that make a shadow request an ask."""
    return {ASK_KEY: msgspec.json.encode(ask).decode()}


def read_ask(xargs: Mapping[str, Any] | None) -> PushAsk | None:
    """None: it is a push itself. Raises MarkInvalid."""
    message = (xargs or {}).get(ASK_KEY)
    if message is None:
        return None
    if not isinstance(message, str):
        raise MarkInvalid(f"{ASK_KEY} must be JSON in a string, got {message!r}")
    try:
        return msgspec.json.decode(message, type=PushAsk)
    except msgspec.DecodeError as error:
        raise MarkInvalid(f"{ASK_KEY}: {error}") from None


def answer_text(answer: PushAnswer) -> str:
    """The `stop_reason` of an ask."""
    return ANSWERED + msgspec.json.encode(answer).decode()


def read_answer(stop_reason: object) -> PushAnswer:
    """Raises AnswerUnreadable."""
    text = str(stop_reason)
    try:
        return msgspec.json.decode(text.removeprefix(ANSWERED), type=PushAnswer)
    except msgspec.DecodeError:
        raise AnswerUnreadable(f"an ask for a push was answered with {text!r}") from None
