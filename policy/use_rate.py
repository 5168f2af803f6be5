"""Whether shadow work for a model is used at all, and when it rests because it is not.

Tokens are counted over a window that forgets by halves. A model whose share of used tokens stays
below the least one rests for a while and then starts with a clean slate: what sessions do changes.

Pure. Host: coordinator.shadow_targets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class UseRateParams:
    min_share: float
    """Of the computed tokens that have to be used; 0: never rests."""
    window_tokens: int
    """Nothing is judged by less than half of this."""
    rest_s: float

    def __post_init__(self) -> None:
        if not 0 <= self.min_share <= 1:
            raise ValueError(f"use_rate.min_share must be between 0 and 1, got {self.min_share}")
        for name in ("window_tokens", "rest_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"use_rate.{name} must be > 0, got {getattr(self, name)}")


class UseRate:
    """Of one target model."""

    __slots__ = ("_computed", "_params", "_rests_until_s", "_used")

    def __init__(self, params: UseRateParams) -> None:
        self._params = params
        self._computed = 0.0
        self._used = 0.0
        self._rests_until_s = 0.0

    @property
    def used_share(self) -> float | None:
        """None: too little was computed to say."""
        if self._computed < self._params.window_tokens / 2:
            return None
        return self._used / self._computed

    def computed(self, tokens: int) -> None:
        self._computed += tokens
        while self._computed > self._params.window_tokens:
            self._computed /= 2
            self._used /= 2

    def used(self, tokens: int) -> None:
        self._used += tokens

    def rests(self, now_s: float) -> bool:
        if now_s < self._rests_until_s:
            return True
        share = self.used_share
        if share is None or share >= self._params.min_share:
            return False
        self._computed = self._used = 0.0
        self._rests_until_s = now_s + self._params.rest_s
        return True
