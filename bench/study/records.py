"""What a finished cell holds: one seed and window, every approach on the same arrivals.

Sums and not means, so that cells can be put together; plain numbers, so that the file of a cell is
the same bytes for the same seed."""

from __future__ import annotations

# Read at run time too: msgspec decodes by these annotations.
from collections.abc import Mapping  # noqa: TC003

import msgspec


class Sums(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Over some calls of sessions."""

    calls: int
    latency_s: float
    ttft_s: float
    prompt_tokens: int
    cached_tokens: int
    cost_dollars: float
    """Cached input at a tenth of the price."""

    def plus(self, other: Sums) -> Sums:
        mine, theirs = msgspec.structs.asdict(self), msgspec.structs.asdict(other)
        return Sums(**{name: mine[name] + theirs[name] for name in mine})


class NormalTraffic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests that arrived in the measured window."""

    requests: int
    meeting_slos: int
    ttft_s: float
    tpot_s: float
    """Sums, over all of them."""


class Work(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of all instances, over the whole run."""

    gpus: int
    prefill_tokens: int
    """Of requests and calls; shadow tokens are not among them."""
    shadow_computed_tokens: int
    shadow_used_tokens: int
    good_requests: int
    """Requests and calls that met both SLOs."""
    energy_j: float
    """Under the assumed power model, over the time of the traffic."""
    busy_share: float
    """Mean over instances, of the time of the traffic."""
    link_busy_share: float
    """Of the decode links of the model whose links carry most; 0 where nothing is moved. Pushes of
    shadow work are not among it."""


class ApproachResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sessions: int
    all_calls: Sums
    switch_calls: Sums
    switch_calls_by_model: Mapping[str, Sums]
    """By the model that the switch goes to."""
    switch_calls_by_context: Mapping[str, Sums]
    """By the lower end of the prompt's bin, in tokens."""
    normal: NormalTraffic | None
    work: Work


class CellResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    results: Mapping[str, ApproachResult]
    """By approach; calls are those that ended under every one of them."""
    sim_s: float
    """Simulated, all approaches together."""
    events: int
