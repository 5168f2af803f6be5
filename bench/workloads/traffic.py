"""Normal traffic of one model: arrivals at a share rho of a measured capacity, with the lengths of
a published law or of a trace, in the peak, median or trough hour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bench.workloads.trace import Trace

if TYPE_CHECKING:
    from typing import Protocol

    from bench.workloads.lengths import Lengths

    class LengthLaw(Protocol):
        def draw(self, count: int, rng: np.random.Generator) -> Lengths: ...


HOUR_S = 3600.0
MAX_INPUT_TOKENS = 8192
MAX_OUTPUT_TOKENS = 1024
"""Where the paper cuts the lengths of Azure's traces (appendix D.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much normal traffic a pool gets: rho of what it can do, times the hour's share."""

    capacity_per_s: float
    """Measured requests per second at which 90% still meet both SLOs."""
    rho: float
    hour_load: float = 1.0

    def __post_init__(self) -> None:
        if not self.capacity_per_s > 0:
            raise ValueError(f"load.capacity_per_s must be > 0, got {self.capacity_per_s}")
        if not 0 < self.rho <= 2:
            raise ValueError(f"load.rho must be above 0 and at most 2, got {self.rho}")
        if not 0 < self.hour_load <= 1:
            raise ValueError(f"load.hour_load must be above 0 and at most 1, got {self.hour_load}")

    @property
    def rate_per_s(self) -> float:
        return self.capacity_per_s * self.rho * self.hour_load


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One stretch of a trace, and its load as a share of the busiest one's."""

    start_s: float
    end_s: float
    load: float


def drawn_traffic(
    law: LengthLaw,
    rate_per_s: float,
    duration_s: float,
    rng: np.random.Generator,
    *,
    burstiness: float = 1.0,
) -> Trace:
    """`burstiness` is the shape of gamma-distributed gaps, as in `vllm bench serve`: 1 is Poisson,
    below 1 is burstier. Requests arrive before `duration_s`; the first one at 0."""
    if not burstiness > 0:
        raise ValueError(f"burstiness must be > 0, got {burstiness}")
    if not (rate_per_s > 0 and duration_s > 0):
        raise ValueError(
            f"rate_per_s and duration_s must be > 0, got {rate_per_s} and {duration_s}"
        )
    arrival_s = _arrivals_s(rate_per_s, duration_s, burstiness, rng)
    drawn = law.draw(len(arrival_s), rng)
    return Trace(
        name=f"drawn at {rate_per_s:.6g}/s",
        arrival_s=arrival_s,
        input_tokens=np.minimum(drawn.input_tokens, MAX_INPUT_TOKENS),
        output_tokens=np.minimum(drawn.output_tokens, MAX_OUTPUT_TOKENS),
    )


def replayed_traffic(
    trace: Trace, rate_per_s: float, duration_s: float, rng: np.random.Generator
) -> Trace:
    """The trace's own arrivals, stretched to the rate and begun at a random place; where it ends it
    begins again. Its bursts stay, in units of its mean gap."""
    if not (rate_per_s > 0 and duration_s > 0):
        raise ValueError(
            f"rate_per_s and duration_s must be > 0, got {rate_per_s} and {duration_s}"
        )
    stretch = trace.rate_per_s / rate_per_s
    # One mean gap between the last request and the first of the next round.
    round_s = (trace.span_s + 1 / trace.rate_per_s) * stretch
    first = int(rng.integers(len(trace)))
    rounds = int(np.ceil(duration_s / round_s)) + 1
    order = (first + np.arange(rounds * len(trace))) % len(trace)
    laps = (first + np.arange(rounds * len(trace))) // len(trace)
    arrival_s = trace.arrival_s[order] * stretch + laps * round_s
    arrival_s -= arrival_s[0]
    kept = int(np.searchsorted(arrival_s, duration_s))
    return Trace(
        name=f"{trace.name} at {rate_per_s:.6g}/s",
        arrival_s=arrival_s[:kept],
        input_tokens=np.minimum(trace.input_tokens[order[:kept]], MAX_INPUT_TOKENS),
        output_tokens=np.minimum(trace.output_tokens[order[:kept]], MAX_OUTPUT_TOKENS),
    )


def load_windows(trace: Trace, window_s: float = HOUR_S) -> dict[str, Window]:
    """The busiest, the median and the quietest whole window; with an even number of windows, the
    upper of the two in the middle."""
    count = int(trace.span_s // window_s)
    if count < 1:
        raise ValueError(f"{trace.name} spans {trace.span_s:.0f} s, less than {window_s:.0f} s")
    edges = np.arange(count + 1) * window_s
    requests = np.diff(np.searchsorted(trace.arrival_s, edges))
    ranked = np.argsort(requests, kind="stable")
    picked = {"peak": ranked[-1], "median": ranked[count // 2], "trough": ranked[0]}
    busiest = requests[ranked[-1]]
    return {
        name: Window(
            start_s=float(edges[i]), end_s=float(edges[i + 1]), load=float(requests[i] / busiest)
        )
        for name, i in picked.items()
    }


def _arrivals_s(
    rate_per_s: float, duration_s: float, burstiness: float, rng: np.random.Generator
) -> np.ndarray:
    """Drawn in blocks until the end is passed, so that the count follows the law too."""
    parts = [np.zeros(1)]
    block = int(rate_per_s * duration_s * 1.1) + 16
    while parts[-1][-1] < duration_s:
        gaps_s = rng.gamma(burstiness, 1 / (rate_per_s * burstiness), block)
        parts.append(parts[-1][-1] + np.cumsum(gaps_s))
    arrival_s = np.concatenate(parts)
    return arrival_s[: int(np.searchsorted(arrival_s, duration_s))]
