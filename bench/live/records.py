"""What a cell leaves behind: a row per call, and the facts that belong to no call."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Kind = Literal["normal", "routed"]


class CallRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call as its client saw it. `key` names the same call in every controller's cell."""

    kind: Kind
    key: str
    model: str
    at_s: float
    """Planned (normal) or real (routed) time of sending, from the cell's begin."""
    late_ms: float = 0.0
    """How much later than planned the client really sent it."""
    session_id: str = ""
    call: int = 0
    is_switch: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    shadow_tokens: int = 0
    output_tokens: int = 0
    ttft_ms: float = 0.0
    e2el_ms: float = 0.0
    itl_ms: tuple[float, ...] = ()
    """Of normal requests: time between one piece of output and the next."""
    queue_ms: float | None = None
    """These four are the TTFT of a session's call in four parts (bench.live.ttft_split); None where
    the engines do not tell."""
    prefill_ms: float | None = None
    transfer_ms: float | None = None
    decode_ms: float | None = None
    prompt_digest: str = ""
    output_as_recorded: bool | None = None
    p_instance: str = ""
    d_instance: str = ""
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first; None if there is only one."""
        if self.output_tokens < 2:
            return None
        return (self.e2el_ms - self.ttft_ms) / (self.output_tokens - 1)


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the engines' own traces say of a cell, all engines together."""

    steps: int
    shadow_steps: int
    """Iterations that carried shadow tokens."""
    shadow_tokens: int
    shadow_step_p99_ms: float
    shadow_step_max_ms: float
    arrival_waits_ms: tuple[float, ...]
    """Of requests that arrived while an iteration with shadow tokens ran."""
    max_foreground_wait_ms: float
    """The same behind iterations without any: no controller can shorten it."""
    grants: dict[str, int]
    """Iterations by what the controller said of them."""

    @property
    def max_arrival_wait_ms(self) -> float:
        return max(self.arrival_waits_ms, default=0.0)


class CellFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a cell's file."""

    load: float
    controller: str
    pushes: bool = True
    repeat: int
    started_unix_s: float
    duration_s: float
    """Of the traffic: the window and what it took to finish."""
    whole_s: float
    """The same with switching, resetting and a new coordinator."""
    client_cpu_share: float
    coordinator_cpu_share: float
    shadow_tokens_computed: int
    shadow_tokens_used: int
    energy_j: float | None
    engines: EngineFacts | None
    """None: these engines write no trace."""

    @property
    def computed_tokens(self) -> int:
        """The coordinator counts a segment when it is finished, the engines every shadow token;
        under `eager` a shadow request is an ordinary one to them, and only the first count is."""
        traced = self.engines.shadow_tokens if self.engines else 0
        return max(self.shadow_tokens_computed, traced)


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    facts: CellFacts
    rows: tuple[CallRow, ...]

    def to_lines(self) -> bytes:
        return b"".join(msgspec.json.encode(line) + b"\n" for line in (self.facts, *self.rows))

    @staticmethod
    def from_lines(text: bytes) -> CellResult:
        first, *rest = text.splitlines()
        return CellResult(
            facts=msgspec.json.decode(first, type=CellFacts),
            rows=tuple(msgspec.json.decode(line, type=CallRow) for line in rest),
        )


class RecordedSession(msgspec.Struct, frozen=True, kw_only=True):
    """What the models answered in one planned session, replayed as history in every cell."""

    key: str
    outputs: tuple[str, ...]
    output_tokens: tuple[int, ...]


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Measured once, before the first cell; the rates and the SLOs of all cells follow from it."""

    models: dict[str, ModelCalibration]


class TriedRate(msgspec.Struct, frozen=True, kw_only=True):
    """Normal requests alone, at this rate: which share of them met both SLOs."""

    per_s: float
    attainment: float


class ModelCalibration(msgspec.Struct, frozen=True, kw_only=True):
    prefill_fixed_s: float
    prefill_s_per_token: float
    decode_s: float
    """Time per output token of a request that is alone."""
    saturated_per_s: float
    """Requests of the normal mix that a saturated engine finishes in a second."""
    tried: tuple[TriedRate, ...] = ()
    capacity_per_s: float = 0.0
    """Highest rate that still meets the SLOs (bench.live.capacity): what loads are shares of."""

    def prefill_s(self, tokens: int) -> float:
        """Of an isolated, uncached prompt: until its first token."""
        return self.prefill_fixed_s + self.prefill_s_per_token * tokens

    @property
    def tpot_slo_s(self) -> float:
        return max(MIN_TPOT_SLO_S, SLO_FACTOR * self.decode_s)

    def ttft_slo_s(self, prompt_tokens: int) -> float:
        return max(MIN_TTFT_SLO_S, SLO_FACTOR * self.prefill_s(prompt_tokens))


SLO_FACTOR = 5.0
MIN_TTFT_SLO_S = 1.0
MIN_TPOT_SLO_S = 0.025


def to_json(value: msgspec.Struct) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(value)
    return built
