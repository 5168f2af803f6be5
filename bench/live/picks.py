"""Which calls a figure is about, and which value of them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bench.live.records import Calibration, CallRow


def normal(row: CallRow) -> bool:
    return row.kind == "normal"


def routed(row: CallRow) -> bool:
    return row.kind == "routed"


def switched(row: CallRow) -> bool:
    return row.kind == "routed" and row.is_switch


def stayed(row: CallRow) -> bool:
    """A call whose model had the call before it: everything but the new input is its own cache."""
    return row.kind == "routed" and not row.is_switch and row.call > 1


def meets_slos(row: CallRow, calibration: Calibration) -> bool:
    """Both of them; a request that failed meets none."""
    model = calibration.models[row.model]
    if not row.ok or row.ttft_ms > 1e3 * model.ttft_slo_s(row.prompt_tokens):
        return False
    return row.tpot_ms is None or row.tpot_ms <= 1e3 * model.tpot_slo_s


def values(
    rows: Iterable[CallRow],
    wanted: Callable[[CallRow], bool],
    pick: Callable[[CallRow], float | None],
) -> list[float]:
    """Of the calls that ended well."""
    picked = (pick(row) for row in rows if row.ok and wanted(row))
    return [value for value in picked if value is not None]


def ttft(row: CallRow) -> float:
    return row.ttft_ms


def e2el(row: CallRow) -> float:
    return row.e2el_ms


def tpot(row: CallRow) -> float | None:
    return row.tpot_ms
