"""What the shadow flow did, counted: `/metrics` renders it.

Plain numbers: one event loop, no locks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class ShadowCounters:
    """Totals since the start."""

    jobs: int = 0
    """Histories that a job was made or extended for."""
    coalesced: int = 0
    """Of these, replaced by a newer one before they were rendered."""
    superseded: int = 0
    """Jobs that a newer history ended before they were finished."""
    cancelled: Counter[str] = field(default_factory=Counter)
    """Running work that was stopped, by reason (`switch`, `session_finished`, `shadow_off`)."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Calls that cannot be shadowed, by reason."""
    renders: int = 0
    render_s: float = 0.0
    """Time that front ends spent on renders, their queue included."""
    rendered_tokens: int = 0
    segments: int = 0
    pushes: int = 0
    slot_busy: int = 0
    """Asks for a push that were not made because another of ours was under way to that D."""
    asks: Counter[str] = field(default_factory=Counter)
    """Asks for a push, by what D answered (policy.link_gate.GateReason)."""
    computed_tokens: int = 0
    pushed_tokens: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    """Ended renders, segments and pushes, by `<step>_<reason>`."""
