"""What the demo says while it works: a live line on a terminal, plain lines otherwise."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.status import Status
    from rich.table import Table

    from bench.demo.records import CallRow


class Progress:
    """Times the phases and tells of each call; `phases_s` holds what finished."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._status: Status | None = None
        self._phase = ""
        self.phases_s: dict[str, float] = {}

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, table: Table) -> None:
        self.console.print(table)

    @contextmanager
    def phase(self, name: str, text: str, *, live: bool = True) -> Iterator[None]:
        """A failed phase is not recorded: its time says nothing. `live`: we draw, nobody else."""
        self._phase = text
        started_s = time.monotonic()
        with self._live(text, live):
            yield
        self.phases_s[name] = round(time.monotonic() - started_s, 1)
        self.say(f"{text}: {self.phases_s[name]:.1f} s")

    def call(self, row: CallRow) -> None:
        kind = "switch" if row.is_switch else "same model"
        self.say(
            f"  {row.run:<5} call {row.call:>2} {row.model:<6} {kind:<10} "
            f"{row.prompt_tokens:>5} tokens, {row.cached_tokens:>5} cached, "
            f"TTFT {row.ttft_ms:>7.0f} ms, {row.output_tokens:>3} out in {row.e2el_ms / 1e3:.1f} s"
        )
        if self._status is not None:
            self._status.update(f"{self._phase}, call {row.call} done")

    @contextmanager
    def _live(self, text: str, live: bool) -> Iterator[None]:
        if not (live and self.console.is_terminal):
            self.say(f"{text} ...")
            yield
            return
        with self.console.status(text) as self._status:
            yield
        self._status = None
