"""What a run hands back: one number per request, and one per instance, in columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.sim.approach import TransferCounts
from bench.sim.rows import NEVER_S, NONE
from bench.sim.world import as_records

if TYPE_CHECKING:
    from bench.sim.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceOutcome:
    """One number per instance."""

    model: np.ndarray
    role: np.ndarray
    """`rows.COLOCATED`, `PREFILL` or `DECODE`."""
    gpus: np.ndarray
    busy_s: np.ndarray
    computed_tokens: np.ndarray
    """Of prompts and outputs; shadow tokens are not among them."""
    shadow_computed_tokens: np.ndarray
    shadow_used_tokens: np.ndarray
    """Of the computed ones, those that a call found, each one once."""
    evicted_tokens: np.ndarray
    pushed_tokens: np.ndarray
    """Shadow KV that came to a decode instance ahead of a call."""
    spilled_tokens: np.ndarray
    restored_tokens: np.ndarray
    """To the host and back."""

    @property
    def shadow_unused_tokens(self) -> np.ndarray:
        """Wasted, once every session has ended; until then a part may still be used."""
        unused: np.ndarray = self.shadow_computed_tokens - self.shadow_used_tokens
        return unused


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One number per request: normal traffic in order of arrival, then the calls of each session in
    order. Times of what has not happened yet are not finite."""

    model: np.ndarray
    session: np.ndarray
    """-1 for normal traffic."""
    call: np.ndarray
    """Number of the call in its session, from 0; -1 for normal traffic."""
    is_switch: np.ndarray
    """The session's call before went to another model."""
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray
    cached_tokens: np.ndarray
    """Of the prompt, from every source; the next three are parts of it."""
    host_tokens: np.ndarray
    """Restored from the host tier."""
    shadow_tokens: np.ndarray
    """Computed by shadow work and used for the first time; some may come from the host tier."""
    oracle_tokens: np.ndarray
    """Cached only because an oracle says so."""
    moved_tokens: np.ndarray
    """From the prefill to the decode instance, when the call was there."""
    prefill_instance: np.ndarray
    decode_instance: np.ndarray
    arrival_s: np.ndarray
    admitted_s: np.ndarray
    first_token_s: np.ndarray
    decode_admitted_s: np.ndarray
    transfer_end_s: np.ndarray
    finished_s: np.ndarray
    instances: InstanceOutcome
    transfer_counts_to: TransferCounts
    events: int
    end_s: float

    @property
    def ttft_s(self) -> np.ndarray:
        times_s: np.ndarray = self._answered_s - self.arrival_s
        return times_s

    @property
    def latency_s(self) -> np.ndarray:
        times_s: np.ndarray = self.finished_s - self.arrival_s
        return times_s

    @property
    def tpot_s(self) -> np.ndarray:
        """After the first token; 0 where there is one token only."""
        later_tokens = np.maximum(1, self.output_tokens - 1)
        times_s: np.ndarray = (self.finished_s - self._answered_s) / later_tokens
        return times_s

    @property
    def finished(self) -> np.ndarray:
        finished: np.ndarray = np.isfinite(self.finished_s)
        return finished

    @property
    def _answered_s(self) -> np.ndarray:
        """From when on time counts to TPOT."""
        if self.transfer_counts_to is TransferCounts.TPOT:
            return self.first_token_s
        moved: np.ndarray = np.where(
            self.decode_instance == NONE, self.first_token_s, self.transfer_end_s
        )
        return moved


def outcome(world: World, transfer_counts_to: TransferCounts) -> Outcome:
    records: Any = as_records(world)
    cluster = records.cluster[0]
    requests, instances = _columns(records.requests), _columns(records.instances)
    session = requests["session"]
    first = _columns(records.sessions)["first_request"][session]
    gpus = _columns(records.models)["gpus"][instances["model"]]
    return Outcome(
        model=requests["model"],
        session=session,
        call=np.where(session == NONE, NONE, np.arange(len(session)) - first),
        is_switch=requests["is_switch"] > 0,
        **{name: requests[name] for name in COUNTS},
        **{name: _times_s(requests[name]) for name in TIMES},
        instances=InstanceOutcome(
            gpus=gpus,
            shadow_used_tokens=instances["shadow_hit_tokens"],
            **{name: instances[name] for name in INSTANCE_COLUMNS},
        ),
        transfer_counts_to=transfer_counts_to,
        events=int(cluster["events"]),
        end_s=float(cluster["now_s"]),
    )


COUNTS = (
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "host_tokens",
    "shadow_tokens",
    "oracle_tokens",
    "moved_tokens",
    "prefill_instance",
    "decode_instance",
)
TIMES = (
    "arrival_s",
    "admitted_s",
    "first_token_s",
    "decode_admitted_s",
    "transfer_end_s",
    "finished_s",
)
INSTANCE_COLUMNS = (
    "model",
    "role",
    "busy_s",
    "computed_tokens",
    "shadow_computed_tokens",
    "evicted_tokens",
    "pushed_tokens",
    "spilled_tokens",
    "restored_tokens",
)


def _columns(records: Any) -> dict[str, np.ndarray]:
    """Copies: the records change when the run goes on."""
    return {name: records[name].copy() for name in records.dtype.names}


def _times_s(values: np.ndarray) -> np.ndarray:
    return np.where(values >= NEVER_S, np.inf, values)
