"""How a request's class, session and SLO are written on it, and read back inside the engine.

The scheduler runs inside vLLM's EngineCore process, which no side API reaches: what it must know of
a request travels as `vllm_xargs` of that request (`sampling_params.extra_args` in the engine). This
file imports neither vLLM nor torch, so that the coordinator can write what the plug-in reads.

An engine that is reachable by others than the coordinator checks `secret`: without it a client
could pose as routed (protected) traffic."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from policy.vocabulary import RequestClass

if TYPE_CHECKING:
    from collections.abc import Mapping

CLASS_KEY = "shadowprefill_class"
SESSION_KEY = "shadowprefill_session"
TTFT_BUDGET_KEY = "shadowprefill_ttft_budget_s"
TPOT_KEY = "shadowprefill_tpot_s"
PROBABILITY_KEY = "shadowprefill_switch_probability"
SECRET_KEY = "shadowprefill_secret"


class MarkInvalid(ValueError):
    """A mark that we cannot read: the request is refused, never guessed at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What the coordinator tells the scheduler about one request.

    `ttft_budget_s` is what is left of the TTFT SLO when the engine receives the request: a
    duration, never a timestamp of another clock. None means: the model's default SLO."""

    request_class: RequestClass = RequestClass.NORMAL
    session_id: str = ""
    ttft_budget_s: float | None = None
    tpot_s: float | None = None
    switch_probability: float = 1.0

    def to_xargs(self, secret: str = "") -> dict[str, str | float]:
        """The `vllm_xargs` entries of these marks."""
        xargs: dict[str, str | float] = {CLASS_KEY: self.request_class.value}
        if self.session_id:
            xargs[SESSION_KEY] = self.session_id
        if self.ttft_budget_s is not None:
            xargs[TTFT_BUDGET_KEY] = self.ttft_budget_s
        if self.tpot_s is not None:
            xargs[TPOT_KEY] = self.tpot_s
        if self.request_class is RequestClass.SHADOW:
            xargs[PROBABILITY_KEY] = self.switch_probability
        if secret:
            xargs[SECRET_KEY] = secret
        return xargs


def read_marks(xargs: Mapping[str, Any] | None, secret: str = "") -> Marks:
    """Marks of a request; raises MarkInvalid. An unmarked request is normal traffic."""
    if not xargs or CLASS_KEY not in xargs:
        return Marks()
    if not carries_secret(xargs, secret):
        raise MarkInvalid(f"{SECRET_KEY} does not match this engine's shared secret")
    try:
        request_class = RequestClass(xargs[CLASS_KEY])
    except ValueError:
        known = [member.value for member in RequestClass]
        raise MarkInvalid(f"{CLASS_KEY} must be one of {known}, got {xargs[CLASS_KEY]!r}") from None
    return Marks(
        request_class=request_class,
        session_id=str(xargs.get(SESSION_KEY, "")),
        ttft_budget_s=_number(xargs, TTFT_BUDGET_KEY),
        tpot_s=_number(xargs, TPOT_KEY),
        switch_probability=_probability(xargs),
    )


def carries_secret(xargs: Mapping[str, Any], secret: str) -> bool:
    """Whether these are the words of somebody who knows the engine's secret, if it has one."""
    # As bytes: `compare_digest` raises for text beyond ASCII, which would end the engine.
    given, known = (
        text.encode(errors="surrogatepass") for text in (str(xargs.get(SECRET_KEY, "")), secret)
    )
    return not secret or hmac.compare_digest(given, known)


def _number(xargs: Mapping[str, Any], key: str) -> float | None:
    value = xargs.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e9:
        raise MarkInvalid(f"{key} must be a finite number, got {value!r}")
    return float(value)


def _probability(xargs: Mapping[str, Any]) -> float:
    value = _number(xargs, PROBABILITY_KEY)
    if value is None:
        return 1.0
    if not 0.0 <= value <= 1.0:
        raise MarkInvalid(f"{PROBABILITY_KEY} must be between 0 and 1, got {value}")
    return value
