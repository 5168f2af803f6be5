"""Sessions, one session and a quote as a person reads them: tables as wide as there is room.

Where there is no terminal, every column and no bars. Pure: shapes in, tables out. Host:
coordinator.cli_sessions."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.table import Table
from rich.text import Text

from coordinator.plain_text import in_cell

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from coordinator.control_shapes import (
        CallRow,
        ModelQuote,
        ModelWarmth,
        SessionDetail,
        SessionQuote,
        SessionRow,
    )

WIDE: Final = 120
"""Columns of a terminal from which on instances and legs have their place, too."""
_BAR_CELLS: Final = 8
_SWITCH_MARK: Final = "*"


class Room(NamedTuple):
    """What the output can show."""

    wide: bool
    bars: bool

    @classmethod
    def of(cls, console: Console) -> Room:
        is_unicode = console.encoding.lower().startswith("utf")
        return cls(
            wide=not console.is_terminal or console.width >= WIDE,
            bars=console.is_terminal and is_unicode,
        )


def session_tables(rows: Sequence[SessionRow], by_tenant: bool) -> Iterator[Table]:
    """The most recently used first; of several tenants, each has a table of its own."""
    groups: defaultdict[str, list[SessionRow]] = defaultdict(list)
    for row in rows:
        groups[row.tenant if by_tenant else ""].append(row)
    for tenant, group in groups.items():
        table = _table(f"tenant {tenant}" if by_tenant else "")
        _columns(table, "session", "model", "calls:", "switches:", "idle:")
        table.add_column("warm", overflow="fold")
        for row in group:
            calls = f"{row.calls:,}" + (f" +{row.active_calls}" if row.active_calls else "")
            table.add_row(
                in_cell(row.session_id),
                row.model or "",
                calls,
                f"{row.switches:,}",
                duration(row.idle_s),
                _warm_models(row),
            )
        yield table


def headlines(row: SessionRow) -> list[str]:
    """What and whose it is; what has happened."""
    named = "named by its client" if row.is_named else "found by its history"
    running = f", {row.active_calls} running" if row.active_calls else ""
    return [
        f"{in_cell(row.session_id)}: {row.kind}, {named}, on {row.model or 'no model yet'}",
        f"{_counted(row.calls, 'call')}{running}, {_counted(row.switches, 'switch', 'es')}, idle "
        f"{duration(row.idle_s)}; shadow work {'on' if row.shadow_enabled else 'off'}",
    ]


def warmth_table(row: SessionRow, room: Room) -> Table:
    """What each model holds of the session's history, and what shadow work did for it."""
    table = _table()
    _columns(table, "model", "warm:", "on P:", "on D:", "history:", "missing:")
    _columns(table, "shadow used:", "wasted:", "next:")
    if room.wide:
        _columns(table, "computed:", "pending:", "shadow", "age:", "P", "D")
    for model, warmth in row.models.items():
        cells: list[Text | str] = [
            Text(in_cell(model), "bold" if model == row.model else ""),
            _warm(warmth, room),
            f"{warmth.p_warm_tokens:,}",
            f"{warmth.d_warm_tokens:,}",
            ("" if warmth.history_exact else "~") + f"{warmth.history_tokens:,}",
            f"{warmth.missing_tokens:,}",
            f"{warmth.shadow_tokens_used:,}",
            f"{warmth.shadow_tokens_wasted:,}",
            f"{warmth.switch_probability:.2f}",
        ]
        if room.wide:
            cells += [
                f"{warmth.shadow_tokens_computed:,}",
                f"{warmth.shadow_tokens_pending:,}",
                warmth.shadow_state.value,
                "" if warmth.age_s is None else duration(warmth.age_s),
                warmth.p_instance or "",
                warmth.d_instance or "",
            ]
        table.add_row(*cells)
    return table


def call_table(detail: SessionDetail, last: int, room: Room) -> Table:
    """The timeline: the newest calls, oldest first."""
    shown = detail.calls[-last:]
    earlier = detail.summary.calls - len(shown)
    notes = [_counted(earlier, "earlier call")] if earlier else []
    notes += [f"{_SWITCH_MARK} a switch of model"] if detail.summary.switches else []
    table = _table("; ".join([*notes, "times in ms"]), has_texts=True)
    _columns(table, "call:", "ago:", "", "model", "prompt:", "cached:", "shadow:", "out:")
    _columns(table, "TTFT:", "total:")
    if room.wide:
        _columns(table, "P leg:", "D leg:", "P", "D")
    _text_column(table, "end")
    for call in shown:
        table.add_row(*_call_cells(call, room))
    return table


def shadow_table(detail: SessionDetail, last: int) -> Table:
    """What was computed and pushed for the session, beside its calls."""
    table = _table("shadow work", has_texts=True)
    _columns(table, "work", "ago:", "model", "took ms:", "up to:", "tokens:")
    _text_column(table, "end")
    for work in detail.shadow_work[-last:]:
        table.add_row(
            work.kind.value,
            duration(work.age_s),
            in_cell(work.model),
            _ms(None if work.took_s is None else work.took_s * 1000),
            f"{work.end_tokens:,}",
            f"{work.tokens:,}",
            in_cell(work.outcome),
        )
    return table


def quote_table(quote: SessionQuote, room: Room) -> Table:
    """What the next call would cost on each model now."""
    table = _table(has_texts=True)
    _columns(table, "model", "prompt:", "cached:", "uncached:", "transfer:")
    _columns(table, "est. TTFT ms:", "input price:")
    if room.wide:
        _columns(table, "P", "D")
    _text_column(table, "")
    for one in quote.quotes:
        table.add_row(*_quote_cells(one, room))
    return table


def duration(seconds: float) -> str:
    """As short as a column needs it."""
    for limit, unit_s, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def _call_cells(call: CallRow, room: Room) -> list[Text | str]:
    cells: list[Text | str] = [
        str(call.call),
        "" if call.age_s is None else duration(call.age_s),
        Text(_SWITCH_MARK, "yellow") if call.is_switch else "",
        in_cell(call.model),
        _count(call.prompt_tokens),
        _count(call.cached_tokens),
        Text(_count(call.shadow_tokens), "green") if call.shadow_tokens else "",
        _count(call.output_tokens),
        _ms(call.ttft_ms),
        _ms(call.e2el_ms),
    ]
    if room.wide:
        instances = [call.p_instance or "", call.d_instance or ""]
        cells += [_ms(call.p_leg_ms), _ms(call.d_leg_ms), *instances]
    if call.error is not None:
        cells.append(Text(in_cell(call.error), "red"))
    else:
        cells.append(in_cell(call.finish_reason or ("runs" if call.e2el_ms is None else "")))
    return cells


def _quote_cells(one: ModelQuote, room: Room) -> list[Text | str]:
    cells: list[Text | str] = [
        Text(in_cell(one.model), "bold" if one.is_current else ""),
        ("" if one.prompt_exact else "~") + f"{one.prompt_tokens:,}",
        f"{one.cached_tokens:,}",
        f"{one.uncached_tokens:,}",
        f"{one.transfer_tokens:,}",
        _ms(one.estimated_ttft_ms),
        "" if one.input_price is None else f"{one.input_price:.6f}",
    ]
    if room.wide:
        cells += [one.p_instance or "", one.d_instance or ""]
    if one.available:
        cells.append("no switch" if one.is_current else "")
    else:
        cells.append(Text(in_cell(one.why_not or "not available"), "red"))
    return cells


def _warm(warmth: ModelWarmth, room: Room) -> Text:
    share = _share(warmth)
    bar = round(share * _BAR_CELLS)
    shown = f"{'█' * bar}{'░' * (_BAR_CELLS - bar)} " if room.bars else ""
    return Text(f"{shown}{share:4.0%}", _colour(share))


def _warm_models(row: SessionRow) -> Text:
    """All models in one cell, the warmest first."""
    warmest = sorted(row.models.items(), key=lambda one: -_share(one[1]))
    cell = Text()
    for model, warmth in warmest:
        share = _share(warmth)
        cell.append("  " if cell else "")
        cell.append(f"{in_cell(model)} ")
        cell.append(f"{share:.0%}", _colour(share))
    return cell


def _share(warmth: ModelWarmth) -> float:
    return min(1.0, warmth.p_warm_tokens / max(1, warmth.history_tokens))


def _colour(share: float) -> str:
    return "green" if share >= 0.9 else "yellow" if share >= 0.1 else "dim"


def _table(title: str = "", has_texts: bool = False) -> Table:
    # Expanded, a column of texts takes what the others leave; else rich cuts numbers for it.
    return Table(
        box=None, pad_edge=False, title=title or None, title_justify="left", expand=has_texts
    )


def _text_column(table: Table, name: str) -> None:
    table.add_column(name, no_wrap=True, overflow="ellipsis", ratio=1, min_width=4)


def _columns(table: Table, *names: str) -> None:
    """A colon at the end: numbers."""
    for name in names:
        table.add_column(
            name.removesuffix(":"), justify="right" if name.endswith(":") else "left", no_wrap=True
        )


def _counted(number: int, what: str, plural: str = "s") -> str:
    return f"{number:,} {what}{'' if number == 1 else plural}"


def _count(tokens: int | None) -> str:
    return "" if tokens is None else f"{tokens:,}"


def _ms(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f"{milliseconds:,.0f}"
