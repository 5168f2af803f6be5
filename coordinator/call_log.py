"""One line per finished call, to train a router on (routing.samples).

Without prompts unless the configuration asks for them: then a line has the numbers of the step
alone. Lines are written by a thread; when that cannot follow, or the file is full, calls are left
out and counted, and never held up. Host: coordinator.pd_flow."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from routing.step_view import step_view

if TYPE_CHECKING:
    from collections.abc import Callable

    from configs.schema import CallLogConfig
    from coordinator.calls import CallContext
    from coordinator.sessions import Session

WRITE_EVERY_S: Final = 1.0
MAX_WAITING_BYTES: Final = 64 * 1024 * 1024

_log = logging.getLogger(__name__)


class _Entry(NamedTuple):
    fields: dict[str, Any]
    prompt: bytes


class CallLog:
    """One per application."""

    def __init__(self, config: CallLogConfig, on_left_out: Callable[[], None]) -> None:
        self._config = config
        self._path = Path(config.path)
        self._on_left_out = on_left_out
        self._waiting: list[_Entry] = []
        self._waiting_bytes = 0
        self._is_full = False
        self._writing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._writing = asyncio.create_task(self._write_now_and_then())

    async def stop(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            with suppress(asyncio.CancelledError):
                await self._writing
        await self._write()

    def ended(self, session: Session, call: CallContext) -> None:
        """A call was answered. One of a session without a name belongs to no task: left out."""
        if not session.id:
            return
        prompt = call.prompt_raw or b"null"
        if self._is_full or self._waiting_bytes + len(prompt) > MAX_WAITING_BYTES:
            self._on_left_out()
            return
        record = msgspec.to_builtins(call.record)
        del record["started_s"], record["error"]  # another process's clock; these had none
        fields = {"tenant": session.tenant, "session_id": session.id, "kind": session.task_kind}
        self._waiting.append(_Entry(fields | record, prompt))
        self._waiting_bytes += len(prompt)

    async def _write_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(WRITE_EVERY_S)
            await self._write()

    async def _write(self) -> None:
        entries, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not entries:
            return
        try:
            left_out = await asyncio.to_thread(self._append, entries)
        except OSError as error:
            _log.warning("%s: cannot be written: %s", self._path, error.strerror)
            left_out = len(entries)
        for _ in range(left_out):
            self._on_left_out()

    def _append(self, entries: list[_Entry]) -> int:
        """How many did not fit. Readable for its owner alone: it may hold prompts."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            for at, entry in enumerate(entries):
                line = self._line(entry)
                if file.tell() + len(line) > self._config.max_bytes:
                    self._is_full = True
                    _log.warning("%s: is full (%d bytes)", self._path, self._config.max_bytes)
                    return len(entries) - at
                file.write(line)
        return 0

    def _line(self, entry: _Entry) -> bytes:
        row = entry.fields | {"numbers": asdict(step_view(entry.prompt).numbers)}
        if self._config.prompts:
            row["prompt"] = msgspec.Raw(entry.prompt)
        return msgspec.json.encode(row) + b"\n"
