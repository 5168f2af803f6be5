"""The one table of the demo: a row per call, the means below it."""

from __future__ import annotations

from rich.table import Table

from bench.demo.summary import Pick, Runs, Summary, cached_share, every, switches, ttft_mean

COLUMNS = (
    "call", "model", "switch", "prompt\ntokens", "cached\noff", "cached\non",
    "TTFT ms\noff", "TTFT ms\non", "TTFT ms\nfloor", "shadow\nused",
)  # fmt: skip


def demo_table(runs: Runs, title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("model", "switch") else "right")
    for off, on, floor in zip(runs.off.rows, runs.on.rows, runs.floor.rows, strict=True):
        table.add_row(
            str(off.call), off.model, "switch" if off.is_switch else "", str(off.prompt_tokens),
            str(off.cached_tokens), str(on.cached_tokens),
            _ms(off.ttft_ms), _ms(on.ttft_ms), _ms(floor.ttft_ms), str(on.shadow_tokens),
            style="bold" if off.is_switch else None,
        )  # fmt: skip
    table.add_section()
    table.add_row(*_mean_row(runs, "switch calls", switches))
    table.add_row(*_mean_row(runs, "all calls", every))
    return table


def closing_lines(summary: Summary) -> list[str]:
    """Below the table: what the means say."""
    return [
        f"switch tax removed: {_percent(summary.switch_tax_removed_share)} "
        "((off - on) / (off - floor) over the mean TTFT of switch calls)",
        "cached on switch calls, of the tokens that existed before the call: "
        f"off {_percent(summary.cached_share_switch_off)}, "
        f"on {_percent(summary.cached_share_switch_on)}",
        f"shadow tokens: {summary.shadow_tokens_computed} computed, "
        f"{summary.shadow_tokens_used} used ({_percent(summary.shadow_tokens_used_share)})",
        f"prefill of an uncached token, off run: {_costs(summary.prefill_ms_per_token)}",
        f"outputs off and on: float32 calls {'equal' if summary.outputs_equal else 'NOT EQUAL'} "
        f"token for token{_others_equal(summary.outputs_equal_share_bf16)}",
    ]


def _others_equal(share: float | None) -> str:
    if share is None:
        return "; no model ran in bfloat16"
    return f", {_percent(share)} of the others equal (bfloat16 differs with the batch's shape)"


def _mean_row(runs: Runs, name: str, pick: Pick) -> list[str]:
    shadow = [row.shadow_tokens for row in runs.on.rows if pick(row)]
    return [
        "mean", name, "", "",
        _percent(cached_share(runs.off, pick)), _percent(cached_share(runs.on, pick)),
        *(_ms(ttft_mean(run, pick)) for run in (runs.off, runs.on, runs.floor)),
        f"{sum(shadow) / len(shadow):.0f}" if shadow else "-",
    ]  # fmt: skip


def _costs(ms_per_token: dict[str, float]) -> str:
    return ", ".join(f"{model} {cost:.1f} ms" for model, cost in ms_per_token.items())


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"
