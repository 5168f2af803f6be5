"""What became of each piece of shadow work, for the session's timeline.

Host: coordinator.shadow_work."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from coordinator.engine_post import ShadowFailed
from coordinator.sessions import ShadowRecord, ShadowWorkKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from coordinator.shadow_job import ShadowJob

DONE, RUNNING, STOPPED = "done", "running", "stopped"
"""Outcomes beside those of ShadowFailure. A call, a newer history or the session's end stops it."""


@contextmanager
def recorded(
    job: ShadowJob, kind: ShadowWorkKind, end: int, clock: Callable[[], float]
) -> Iterator[ShadowRecord]:
    """Of the prompt's first `end` tokens; the work itself says how many that cost."""
    record = ShadowRecord(
        kind=kind, model=job.model, started_s=clock(), end_tokens=end, outcome=RUNNING
    )
    job.session.record_shadow(record)
    try:
        yield record
        record.outcome = DONE
    except ShadowFailed as error:
        record.outcome = error.failure
        raise
    except asyncio.CancelledError:
        record.outcome = STOPPED
        raise
    finally:
        record.took_s = clock() - record.started_s
