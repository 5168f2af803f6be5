"""What the runs show: means, shares, and whether the demo's promises hold.

Pure: rows in, numbers and verdicts out. A number that the rows cannot give is None, and the promise
that needs it is broken with that reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bench.demo.records import CallRow, RunRecord

MIN_CACHED_SHARE = 0.9
MIN_TAX_REMOVED_SHARE = 0.8
MIN_CALLS = 10
MIN_SWITCH_CALLS = 4
MIN_LAST_PROMPT_TOKENS = 6000

Pick = Callable[[CallRow], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """One session four times; `again` repeats only its first calls."""

    off: RunRecord
    on: RunRecord
    floor: RunRecord
    again: RunRecord
    float32_models: frozenset[str]
    """Models whose greedy outputs must be equal; the others' share is only reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The keys of `summary.json`."""

    calls: int
    switch_calls: int
    ttft_ms_switch_off_mean: float | None
    ttft_ms_switch_on_mean: float | None
    ttft_ms_switch_floor_mean: float | None
    switch_tax_removed_share: float | None
    cached_share_switch_off: float | None
    cached_share_switch_on: float | None
    outputs_equal: bool
    outputs_equal_share_bf16: float | None
    shadow_tokens_computed: int
    shadow_tokens_used: int
    shadow_tokens_used_share: float | None
    ttft_ms_all_off_mean: float | None
    ttft_ms_all_on_mean: float | None
    ttft_ms_all_floor_mean: float | None
    e2el_ms_switch_off_mean: float | None
    e2el_ms_switch_on_mean: float | None
    e2el_ms_all_off_mean: float | None
    e2el_ms_all_on_mean: float | None
    prompts_equal: bool
    prompt_tokens_last: int
    prefill_ms_per_token: dict[str, float]
    """TTFT over uncached prompt tokens of run 1, per model: what a shadow saves per token."""


def every(_: CallRow) -> bool:
    return True


def switches(row: CallRow) -> bool:
    return row.is_switch


def mean(values: Iterable[float]) -> float | None:
    kept = list(values)
    return sum(kept) / len(kept) if kept else None


def ttft_mean(run: RunRecord, pick: Pick) -> float | None:
    return _rounded(mean(row.ttft_ms for row in run.rows if pick(row)), 1)


def e2el_mean(run: RunRecord, pick: Pick) -> float | None:
    return _rounded(mean(row.e2el_ms for row in run.rows if pick(row)), 1)


def cached_share(run: RunRecord, pick: Pick) -> float | None:
    """Cached tokens over the prompt tokens that existed before the calls, summed over the calls."""
    rows = [row for row in run.rows if pick(row)]
    existed = sum(row.history_tokens for row in rows)
    cached = sum(min(row.cached_tokens, row.history_tokens) for row in rows)
    return round(cached / existed, 4) if existed else None


def tax_removed_share(runs: Runs) -> float | None:
    """(off - on) / (off - floor) over the mean TTFT of switch calls; None if there was no tax."""
    off, on, floor = (
        mean(row.ttft_ms for row in run.rows if row.is_switch)
        for run in (runs.off, runs.on, runs.floor)
    )
    if off is None or on is None or floor is None or off <= floor:
        return None
    return round((off - on) / (off - floor), 4)


def prefill_cost(run: RunRecord) -> dict[str, float]:
    costs = {}
    for model in dict.fromkeys(row.model for row in run.rows):
        rows = [row for row in run.rows if row.model == model]
        uncached = sum(row.prompt_tokens - row.cached_tokens for row in rows)
        costs[model] = round(sum(row.ttft_ms for row in rows) / max(uncached, 1), 2)
    return costs


def same_output(first: CallRow, second: CallRow) -> bool:
    """Token for token; an engine that gave no ids has shown nothing."""
    return bool(first.output_ids) and first.output_ids == second.output_ids


def same_prompt(first: CallRow, second: CallRow) -> bool:
    return bool(first.prompt_ids) and first.prompt_ids == second.prompt_ids


def summarise(runs: Runs) -> Summary:
    pairs = list(zip(runs.off.rows, runs.on.rows, strict=True))
    exact = [pair for pair in pairs if pair[0].model in runs.float32_models]
    loose = [pair for pair in pairs if pair[0].model not in runs.float32_models]
    computed, used = runs.on.shadow_tokens_computed, runs.on.shadow_tokens_used
    return Summary(
        calls=len(pairs),
        switch_calls=sum(row.is_switch for row in runs.off.rows),
        ttft_ms_switch_off_mean=ttft_mean(runs.off, switches),
        ttft_ms_switch_on_mean=ttft_mean(runs.on, switches),
        ttft_ms_switch_floor_mean=ttft_mean(runs.floor, switches),
        switch_tax_removed_share=tax_removed_share(runs),
        cached_share_switch_off=cached_share(runs.off, switches),
        cached_share_switch_on=cached_share(runs.on, switches),
        outputs_equal=bool(exact) and all(same_output(*pair) for pair in exact),
        outputs_equal_share_bf16=_rounded(mean(same_output(*pair) for pair in loose), 4),
        shadow_tokens_computed=computed,
        shadow_tokens_used=used,
        shadow_tokens_used_share=round(used / computed, 4) if computed else None,
        ttft_ms_all_off_mean=ttft_mean(runs.off, every),
        ttft_ms_all_on_mean=ttft_mean(runs.on, every),
        ttft_ms_all_floor_mean=ttft_mean(runs.floor, every),
        e2el_ms_switch_off_mean=e2el_mean(runs.off, switches),
        e2el_ms_switch_on_mean=e2el_mean(runs.on, switches),
        e2el_ms_all_off_mean=e2el_mean(runs.off, every),
        e2el_ms_all_on_mean=e2el_mean(runs.on, every),
        prompts_equal=all(same_prompt(*pair) for pair in pairs),
        prompt_tokens_last=runs.off.rows[-1].prompt_tokens,
        prefill_ms_per_token=prefill_cost(runs.off),
    )


def broken_promises(runs: Runs, summary: Summary) -> list[str]:
    """Every promise that these runs do not keep, with what was measured and the limit."""
    return [
        *_at_least("calls", summary.calls, MIN_CALLS),
        *_at_least("switch_calls", summary.switch_calls, MIN_SWITCH_CALLS),
        *_at_least("prompt_tokens_last", summary.prompt_tokens_last, MIN_LAST_PROMPT_TOKENS),
        *_at_least("cached_share_switch_on", summary.cached_share_switch_on, MIN_CACHED_SHARE),
        *_tax_promise(summary),
        *_equal_promises(runs, summary),
        *_empty_cache_promise(runs.off.rows, runs.again.rows),
    ]


def _at_least(name: str, value: float | None, limit: float) -> list[str]:
    if value is None:
        return [f"{name}: not measurable in these runs, must be at least {limit}"]
    short_by = limit - value
    return [f"{name}: {value}, must be at least {limit} (short by {short_by:.4g})"] * (short_by > 0)


def _tax_promise(summary: Summary) -> list[str]:
    if summary.switch_tax_removed_share is None:
        return [
            "switch_tax_removed_share: there was no tax to remove, mean TTFT of switches was "
            f"{summary.ttft_ms_switch_off_mean} off, floor {summary.ttft_ms_switch_floor_mean} ms"
        ]
    return _at_least(
        "switch_tax_removed_share", summary.switch_tax_removed_share, MIN_TAX_REMOVED_SHARE
    )


def _equal_promises(runs: Runs, summary: Summary) -> list[str]:
    pairs = list(zip(runs.off.rows, runs.on.rows, strict=True))
    broken = []
    if not summary.prompts_equal:
        calls = [first.call for first, second in pairs if not same_prompt(first, second)]
        broken.append(f"prompts_equal: calls {calls} had different prompt tokens off and on")
    if not summary.outputs_equal:
        exact = [pair for pair in pairs if pair[0].model in runs.float32_models]
        calls = [first.call for first, second in exact if not same_output(first, second)]
        broken.append(
            f"outputs_equal: calls {calls} of {len(exact)} float32 calls differ between off and "
            "on, all must be equal token for token"
        )
    return broken


def _empty_cache_promise(first: Sequence[CallRow], again: Sequence[CallRow]) -> list[str]:
    return [
        f"empty caches: call {repeat.call} of the third run had {repeat.cached_tokens} cached "
        f"tokens, the first run {row.cached_tokens}: it must not have more"
        for row, repeat in zip(first, again, strict=False)
        if repeat.cached_tokens > row.cached_tokens
    ]


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
