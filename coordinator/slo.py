"""Which SLOs a call has: its own, named in its headers, else those of its class, else its model's.

Pure. Hosts: coordinator.pd_flow reads the headers before anything else happens, coordinator.
call_book decides once the class is known."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from coordinator.errors import HeaderInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from configs.schema import ModelConfig
    from policy.vocabulary import RequestClass

TTFT_HEADER: Final = b"x-shadowprefill-ttft-slo-ms"
TPOT_HEADER: Final = b"x-shadowprefill-tpot-slo-ms"
MAX_SLO_MS: Final = 3_600_000
"""An hour: whoever has no target leaves the header out."""

_MS: Final = re.compile(rb"\d{1,7}(\.\d{1,6})?")


class SloWish(NamedTuple):
    """What a client asks for; None: what the configuration says."""

    ttft_s: float | None = None
    tpot_s: float | None = None


class CallSlo(NamedTuple):
    ttft_s: float
    tpot_s: float


def slo_wish(headers: Mapping[bytes, bytes]) -> SloWish:
    """Raises HeaderInvalid."""
    return SloWish(_seconds(headers, TTFT_HEADER), _seconds(headers, TPOT_HEADER))


def slo_of(model: ModelConfig, request_class: RequestClass, wish: SloWish) -> CallSlo:
    default = model.slo_of(request_class)
    return CallSlo(
        default.ttft_s if wish.ttft_s is None else wish.ttft_s,
        default.tpot_s if wish.tpot_s is None else wish.tpot_s,
    )


def _seconds(headers: Mapping[bytes, bytes], name: bytes) -> float | None:
    value = headers.get(name)
    if value is None:
        return None
    number_ms = float(value) if _MS.fullmatch(value) else 0.0
    if not 0.0 < number_ms <= MAX_SLO_MS:
        raise HeaderInvalid(
            name.decode(),
            f"must be a number of milliseconds > 0 and <= {MAX_SLO_MS}",
            value.decode("latin-1"),
        )
    return number_ms / 1000
