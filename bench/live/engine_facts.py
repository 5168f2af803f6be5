"""What the engines' traces say about a cell: waits of arrivals, iterations with shadow tokens.

The trace is the engine's own (a line per iteration, switched on for the cell by the same control
request that sets the controller), so a wait is what the engine measured and not what a client
guesses. Reads only the fields that it needs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from bench.live.records import EngineFacts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

BEHIND_SHADOW = "shadow"
BEHIND_FOREGROUND = "foreground"


class _Line(msgspec.Struct):
    kind: str = ""
    step_s: float = 0.0
    shadow_tokens: int = 0
    reason: str = ""
    arrivals: list[tuple[float, str]] = []


_decode = msgspec.json.Decoder(_Line).decode


def read_traces(paths: Iterable[Path]) -> EngineFacts | None:
    """Of all engines of a cell; None if there is no trace."""
    lines = [_decode(line) for path in paths for line in path.read_bytes().splitlines()]
    return facts_of([line for line in lines if line.kind == "step"]) if lines else None


def facts_of(steps: Sequence[_Line]) -> EngineFacts:
    shadow_s = [step.step_s for step in steps if step.shadow_tokens]
    waits = [wait for step in steps for wait in step.arrivals]
    behind_shadow_s = [wait_s for wait_s, behind in waits if behind == BEHIND_SHADOW]
    behind_foreground_s = [wait_s for wait_s, behind in waits if behind == BEHIND_FOREGROUND]
    return EngineFacts(
        steps=len(steps),
        shadow_steps=len(shadow_s),
        shadow_tokens=sum(step.shadow_tokens for step in steps),
        shadow_step_p99_ms=_ms(shadow_s, 0.99),
        shadow_step_max_ms=_ms(shadow_s, 1.0),
        arrival_waits_ms=tuple(round(1e3 * wait_s, 2) for wait_s in behind_shadow_s),
        max_foreground_wait_ms=_ms(behind_foreground_s, 1.0),
        grants=dict(Counter(step.reason for step in steps if step.reason)),
    )


def _ms(values_s: Sequence[float], share: float) -> float:
    return round(1e3 * float(np.quantile(values_s, share)), 2) if values_s else 0.0
