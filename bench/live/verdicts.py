"""The aims of the live benchmark, and what the measured differences say about each.

`passed` needs evidence: an interval that is too wide is `inconclusive`. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from policy.vocabulary import Controller

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bench.live.compare import Difference, Tax

TAX_AIM = 0.6
TAX_LOADS = (0.3, 0.5)
WAIT_FACTOR = 1.2
HARM_METRICS = ("llm_call_ms", "normal_ttft_ms", "normal_tpot_ms")
HARMFUL = (Controller.REQUEST, Controller.EAGER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One controller at one load, against `off`."""

    load: float
    controller: Controller
    differences: Mapping[str, Difference]
    taxes: Mapping[str, Tax]
    p99_arrival_wait_ms: float | None
    """Behind iterations with shadow tokens; None: not measured."""
    cap_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    aim: str
    load: float
    controller: str
    outcome: str
    """passed | failed | inconclusive | not run"""
    text: str


def verdicts(compared: list[Compared]) -> list[Verdict]:
    ours = {one.load: one for one in compared if one.controller is Controller.HARVEST_SLO}
    out = [_tax(load, ours.get(load)) for load in TAX_LOADS]
    for _, one in sorted(ours.items()):
        out += [_not_slower(one), _attainment(one), _wait(one)]
    out += [_harm(controller, compared) for controller in HARMFUL]
    return out


def _tax(load: float, one: Compared | None) -> Verdict:
    aim = f"at least {TAX_AIM:.0%} of the switch tax removed"
    name = Controller.HARVEST_SLO.value
    if one is None:
        return Verdict(aim=aim, load=load, controller=name, outcome="not run", text="no cells")
    tax, seen = one.taxes.get("stayed"), one.differences["switch_ttft_ms"]
    if tax is None or tax.removed is None:
        text = "no tax that the noise leaves visible"
        return Verdict(aim=aim, load=load, controller=name, outcome="inconclusive", text=text)
    outcome = "passed" if tax.removed.value >= TAX_AIM else "failed"
    if seen.outcome == "inconclusive":
        outcome = "inconclusive"
    text = (
        f"{tax.removed.value:.0%} removed ({tax.removed.low:.0%} to {tax.removed.high:.0%}): "
        f"switch TTFT {tax.off_ms:.0f} ms off, {tax.on_ms:.0f} ms on, {tax.floor_ms:.0f} ms for a "
        f"call that stays; {_shown(seen)}"
    )
    return Verdict(aim=aim, load=load, controller=name, outcome=outcome, text=text)


def _not_slower(one: Compared) -> Verdict:
    seen = one.differences["llm_call_ms"]
    is_worse = seen.interval is not None and seen.interval.low > 0
    return Verdict(
        aim="LLM-call latency never worse than off beyond noise",
        load=one.load,
        controller=one.controller.value,
        outcome=_outcome(seen, is_worse=is_worse),
        text=_shown(seen),
    )


def _attainment(one: Compared) -> Verdict:
    seen = one.differences["normal_slo_attainment"]
    is_worse = seen.interval is not None and seen.interval.high < 0
    return Verdict(
        aim="normal SLO attainment never down",
        load=one.load,
        controller=one.controller.value,
        outcome=_outcome(seen, is_worse=is_worse),
        text=_shown(seen),
    )


def _wait(one: Compared) -> Verdict:
    wait_ms = one.p99_arrival_wait_ms
    if wait_ms is None:
        outcome, text = "inconclusive", "no request arrived behind a shadow iteration, or no trace"
    else:
        outcome = "passed" if wait_ms <= WAIT_FACTOR * one.cap_ms else "failed"
        text = f"p99 {wait_ms:.0f} ms, cap {one.cap_ms:.0f} ms"
    return Verdict(
        aim=f"an arrival waits at most one capped iteration (p99 <= {WAIT_FACTOR:g} x cap)",
        load=one.load,
        controller=one.controller.value,
        outcome=outcome,
        text=text,
    )


def _outcome(seen: Difference, *, is_worse: bool) -> str:
    """A loss needs a sign only, to pass takes an interval that could not hide one."""
    if is_worse:
        return "failed"
    return "inconclusive" if seen.outcome == "inconclusive" else "passed"


def _harm(controller: Controller, compared: list[Compared]) -> Verdict:
    """At the heaviest load that shows any. Without harm the load was too light to test anything."""
    aim = "shows harm, or the load is too light"
    ran = [one for one in compared if one.controller is controller]
    if not ran:
        return Verdict(
            aim=aim, load=0.0, controller=controller.value, outcome="not run", text="no cells"
        )
    harmed = [(one, found) for one in ran if (found := _harms(one))]
    heaviest = max(ran, key=lambda one: one.load)
    if not harmed:
        return Verdict(
            aim=aim,
            load=heaviest.load,
            controller=controller.value,
            outcome="failed",
            text="the load is too light: " + "; ".join(_harm_lines(heaviest)),
        )
    one, found = max(harmed, key=lambda pair: pair[0].load)
    return Verdict(
        aim=aim,
        load=one.load,
        controller=controller.value,
        outcome="passed",
        text="; ".join(_shown(difference) for difference in found),
    )


def _harms(one: Compared) -> list[Difference]:
    """Harm needs a sign only: an interval may be wide and still lie above zero."""
    slower = [one.differences[metric] for metric in HARM_METRICS]
    found = [seen for seen in slower if seen.interval is not None and seen.interval.low > 0]
    attained = one.differences["normal_slo_attainment"]
    if attained.interval is not None and attained.interval.high < 0:
        found.append(attained)
    return found


def _harm_lines(one: Compared) -> list[str]:
    return [_shown(one.differences[name]) for name in (*HARM_METRICS, "normal_slo_attainment")]


def _shown(seen: Difference) -> str:
    if seen.interval is None:
        return f"{seen.metric}: no matched calls"
    at = seen.interval
    text = (
        f"{seen.metric} {at.value:+.1f} ({at.low:+.1f} to {at.high:+.1f}) {seen.unit} over "
        f"{seen.pairs} matched calls"
    )
    if seen.failed or seen.failed_off:
        text += f", beside {seen.failed} that failed ({seen.failed_off} under off)"
    return text
