"""The switches that were seen, kept in a file from one start to the next.

Losing it costs some probabilities: a file that cannot be read is put aside and said so, never a
reason not to start. Host: coordinator.shadow_targets."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from policy.switching import SwitchCounts

if TYPE_CHECKING:
    from policy.switching import SwitchPrior

SAVE_EVERY_S: Final = 30.0

_log = logging.getLogger(__name__)


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    kinds: dict[str, dict[str, dict[str, int]]]
    all_kinds: dict[str, dict[str, int]]
    version: int = 1


class LearnedFile:
    """One coordinator writes it; several behind one address need a file each."""

    def __init__(self, path: str, prior: SwitchPrior) -> None:
        self._path = Path(path)
        self._prior = prior
        self._saved = b""
        self._saving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await asyncio.to_thread(self._load)
        self._saving = asyncio.create_task(self._save_now_and_then())

    async def stop(self) -> None:
        if self._saving is not None:
            self._saving.cancel()
            with suppress(asyncio.CancelledError):
                await self._saving
        await self.save()

    async def save(self) -> None:
        counts = self._prior.counts()
        document = msgspec.json.encode(_Document(counts.kinds, counts.all_kinds))
        if document == self._saved:
            return
        try:
            await asyncio.to_thread(self._write, document)
        except OSError as error:
            _log.warning("%s: cannot be written: %s", self._path, error.strerror)
        else:
            self._saved = document

    async def _save_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(SAVE_EVERY_S)
            await self.save()

    def _load(self) -> None:
        try:
            document = msgspec.json.decode(self._path.read_bytes(), type=_Document)
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError) as error:
            aside = self._path.with_suffix(".unreadable")
            _log.warning("%s: cannot be read, kept as %s: %s", self._path, aside.name, error)
            with suppress(OSError):
                self._path.replace(aside)
            return
        self._prior.learn(SwitchCounts(document.kinds, document.all_kinds))

    def _write(self, document: bytes) -> None:
        """Whole or not at all: a coordinator may be killed while it writes."""
        unfinished = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        unfinished.write_bytes(document)
        unfinished.replace(self._path)
