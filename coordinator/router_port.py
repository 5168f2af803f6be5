"""What a router is told, and what it answers. Host: coordinator.routers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping


class RouterFailed(Exception):
    """No usable choice: the session stays where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionView:
    """What a router may look at."""

    session_id: str
    call: int
    """1-based number of the call that is to be routed."""
    current_model: str | None
    """Model of the session's last call; None at the first."""
    prompt_json: bytes = field(repr=False, default=b"[]")
    """The client's `messages` (or `prompt`), as JSON."""


class Choice(NamedTuple):
    model: str
    next_probabilities: Mapping[str, float] = {}
    """Of the call after this one, where the router knows: they decide what is kept warm."""


class Router(Protocol):
    """A configured router; `choose` may raise RouterFailed."""

    async def choose(self, view: SessionView) -> Choice: ...
