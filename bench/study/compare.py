"""What an approach changed against the baseline, cell by cell, and how sure that is.

A cell is one seed and window; its approaches met the same arrivals, so a difference is taken within
the cell, and the standard error is that of the differences over the cells. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bench.study.records import ApproachResult, Sums


class Estimate(NamedTuple):
    mean: float
    standard_error: float | None
    """None of a single cell."""
    cells: int


def estimate(values: Sequence[float | None]) -> Estimate | None:
    """Cells without a value (no switch call in them) are left out."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    mean = sum(known) / len(known)
    if len(known) == 1:
        return Estimate(mean, None, 1)
    variance = sum((value - mean) ** 2 for value in known) / (len(known) - 1)
    return Estimate(mean, sqrt(variance / len(known)), len(known))


@dataclass(frozen=True, slots=True)
class Metric:
    key: str
    label: str
    unit: str
    """`%` reductions and changes, `points`, or the unit of a value that is no difference."""
    of: Callable[[ApproachResult, ApproachResult], float | None]
    """Of the approach and of the baseline in the same cell."""


def _mean(total: float, count: float) -> float | None:
    return total / count if count else None


def _reduction(now: float | None, before: float | None) -> float | None:
    return None if now is None or not before else 100 * (1 - now / before)


def _change(now: float | None, before: float | None) -> float | None:
    return None if now is None or not before else 100 * (now / before - 1)


def _reduced(
    calls: Callable[[ApproachResult], Sums], value: Callable[[Sums], float]
) -> Callable[[ApproachResult, ApproachResult], float | None]:
    """Of sums over the same calls, so that their number cancels out."""
    return lambda now, before: _reduction(value(calls(now)), value(calls(before)))


def _of_switches(result: ApproachResult) -> Sums:
    return result.switch_calls


def _of_all(result: ApproachResult) -> Sums:
    return result.all_calls


def _hit_pct(sums: Sums) -> float | None:
    return _mean(100 * sums.cached_tokens, sums.prompt_tokens)


def _attainment_pct(result: ApproachResult) -> float | None:
    normal = result.normal
    return None if normal is None else _mean(100 * normal.meeting_slos, normal.requests)


def _points(now: float | None, before: float | None) -> float | None:
    return None if now is None or before is None else now - before


def _energy_per_good_j(result: ApproachResult) -> float | None:
    return _mean(result.work.energy_j, result.work.good_requests)


def _unused_pct(result: ApproachResult) -> float | None:
    work = result.work
    unused = work.shadow_computed_tokens - work.shadow_used_tokens
    return _mean(100 * unused, work.shadow_computed_tokens)


def _all_prefill(result: ApproachResult) -> float:
    return result.work.prefill_tokens + result.work.shadow_computed_tokens


METRICS = (
    Metric(
        "switch_latency_reduction", "switch-call latency, less", "%",
        _reduced(_of_switches, lambda sums: sums.latency_s),
    ),
    Metric(
        "switch_ttft_reduction", "switch-call TTFT, less", "%",
        _reduced(_of_switches, lambda sums: sums.ttft_s),
    ),
    Metric(
        "llm_latency_reduction", "LLM-call latency, less", "%",
        _reduced(_of_all, lambda sums: sums.latency_s),
    ),
    Metric(
        "token_cost_reduction", "token cost, less", "%",
        _reduced(_of_all, lambda sums: sums.cost_dollars),
    ),
    Metric(
        "switch_cost_reduction", "token cost of switch calls, less", "%",
        _reduced(_of_switches, lambda sums: sums.cost_dollars),
    ),
    Metric("hit_pct", "hit rate, all calls", "% of tokens", lambda now, _: _hit_pct(now.all_calls)),
    Metric(
        "switch_hit_pct", "hit rate, switch calls", "% of tokens",
        lambda now, _: _hit_pct(now.switch_calls),
    ),
    Metric(
        "energy_per_good_change", "energy per good request (assumed power), more", "%",
        lambda now, before: _change(_energy_per_good_j(now), _energy_per_good_j(before)),
    ),
    Metric(
        "slo_attainment_points", "normal requests within SLOs, more", "points",
        lambda now, before: _points(_attainment_pct(now), _attainment_pct(before)),
    ),
    Metric(
        "slo_attainment_pct", "normal requests within SLOs", "%",
        lambda now, _: _attainment_pct(now),
    ),
    Metric(
        "unused_shadow_pct", "shadow tokens never used", "%", lambda now, _: _unused_pct(now)
    ),
    Metric(
        "prefill_throughput_change", "prefill tokens, shadow included, more", "%",
        lambda now, before: _change(_all_prefill(now), _all_prefill(before)),
    ),
    Metric(
        "own_prefill_change", "prefill tokens of requests and calls, more", "%",
        lambda now, before: _change(now.work.prefill_tokens, before.work.prefill_tokens),
    ),
    Metric(
        "switch_latency_s", "switch-call latency", "s",
        lambda now, _: _mean(now.switch_calls.latency_s, now.switch_calls.calls),
    ),
    Metric(
        "switch_ttft_s", "switch-call TTFT", "s",
        lambda now, _: _mean(now.switch_calls.ttft_s, now.switch_calls.calls),
    ),
    Metric(
        "llm_latency_s", "LLM-call latency", "s",
        lambda now, _: _mean(now.all_calls.latency_s, now.all_calls.calls),
    ),
    Metric(
        "task_s", "LLM time per task", "s",
        lambda now, _: _mean(now.all_calls.latency_s, now.sessions),
    ),
    Metric("busy_pct", "instances busy", "%", lambda now, _: 100 * now.work.busy_share),
    Metric("link_busy_pct", "KV links busy", "%", lambda now, _: 100 * now.work.link_busy_share),
)  # fmt: skip
BY_KEY = {metric.key: metric for metric in METRICS}


def reduction_of_picked(
    pick: Callable[[ApproachResult], Sequence[Sums]],
    value: Callable[[Sums], float],
    cells: Sequence[Mapping[str, ApproachResult]],
    name: str,
    base: str,
) -> float | None:
    """A reduction over picked calls of several cells together."""
    known = [results for results in cells if name in results and base in results]
    now = sum(value(sums) for results in known for sums in pick(results[name]))
    before = sum(value(sums) for results in known for sums in pick(results[base]))
    return _reduction(now, before)
