"""How many cells are done, and how long the others take: a bar on a terminal, else a line now and
then. The estimate weighs cells by what they simulate."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.progress import TaskID

LINE_EVERY_S = 10.0


class Progress:
    """Of one batch of jobs after the other."""

    def __init__(self, console: Console, what: str) -> None:
        self._console = console
        self.what = what
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def begin(self, jobs: int, costs: Sequence[float]) -> None:
        """`costs` of those that are not on disk."""
        self._jobs, self._done = jobs, jobs - len(costs)
        self._cost_left, self._cost_done = sum(costs), 0.0
        self._started_s = self._said_s = time.monotonic()
        if not costs:
            return
        if self._done:
            self._say(f"{self.what}: {self._done} of {jobs} are on disk")
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            self._bar = Bar(
                *columns, TextColumn("{task.fields[left]}"), console=self._console, transient=True
            )
            self._bar.start()
            self._task = self._bar.add_task(
                self.what, total=jobs, completed=self._done, left="time left: not known yet"
            )

    def done(self, cost: float) -> None:
        self._done += 1
        self._cost_done += cost
        self._cost_left -= cost
        now_s = time.monotonic()
        left_s = (now_s - self._started_s) * self._cost_left / self._cost_done
        left = f"about {_clock(left_s)} left"
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done, left=left)
        elif now_s - self._said_s >= LINE_EVERY_S and self._done < self._jobs:
            self._said_s = now_s
            self._say(f"{self.what}: {self._done} of {self._jobs} done, {left}")

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None
        if self._cost_done:
            spent = _clock(time.monotonic() - self._started_s)
            self._say(f"{self.what}: {self._jobs} done, this time in {spent}")

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes else f"{rest} s"
