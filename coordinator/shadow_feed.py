"""One routed call as the shadow flow sees it: the bytes it has relayed, and the history they make.

The hot path appends chunks; the rest happens when the watcher reads the feed. Pure: no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.history import History, NoHistory, history_of
from coordinator.stream_text import AnswerText

if TYPE_CHECKING:
    from coordinator.calls import CallContext
    from coordinator.sessions import Session
    from policy.switching import SwitchTarget


class CallFeed:
    """From `call_started` to `call_ended`."""

    __slots__ = (
        "_text",
        "call",
        "chunks",
        "closed",
        "ended",
        "extended_bytes",
        "history",
        "ok",
        "session",
        "targets",
    )

    def __init__(self, session: Session, call: CallContext) -> None:
        self.session = session
        self.call = call
        self.chunks: list[bytes] = []
        """Relayed and not yet read."""
        self.ended = False
        self.ok = False
        self.closed = False
        """Its last history is out."""
        self.history: History | None = None
        """What the call arrived with; None until it was read."""
        self.targets: tuple[SwitchTarget, ...] = ()
        self.extended_bytes = 0
        """Answer text that the jobs were last extended with."""
        self._text = AnswerText(call.kind)

    def open(self, targets: tuple[SwitchTarget, ...]) -> History | NoHistory:
        """Reads what the call arrived with."""
        self.targets = targets
        history = history_of(self.call)
        if isinstance(history, History):
            self.history = history
        return history

    def read(self) -> None:
        """Parses what was relayed since the last time."""
        chunks, self.chunks = self.chunks, []
        if chunks:
            self._text.feed(b"".join(chunks))

    @property
    def new_text_bytes(self) -> int:
        return self._text.text_bytes - self.extended_bytes

    @property
    def readable(self) -> bool:
        return self._text.readable

    def grown(self) -> History:
        """The history with the answer as far as it is known."""
        assert self.history is not None
        self.extended_bytes = self._text.text_bytes
        return self.history.answered(self._text.answer(complete=self.ended))
