"""Lengths of normal traffic: drawn from published quantiles, or taken from a trace.

Between two published quantiles nothing is known, so all segments share one bend, and the bend is
the one that gives the published mean."""

from __future__ import annotations

# Read at run time too: msgspec decodes by these annotations.
from collections.abc import Mapping  # noqa: TC003
from functools import cache
from importlib import resources
from typing import NamedTuple

import msgspec
import numpy as np


class Lengths(NamedTuple):
    input_tokens: np.ndarray
    output_tokens: np.ndarray


class QuantileTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A length law: `tokens[i]` is not exceeded with probability `shares[i]`."""

    shares: tuple[float, ...]
    tokens: tuple[float, ...]
    mean: float

    def __post_init__(self) -> None:
        if len(self.shares) != len(self.tokens) or len(self.shares) < 2:
            raise ValueError("shares and tokens must be two lists of the same length, 2 or more")
        if self.shares[0] != 0 or self.shares[-1] != 1 or not (np.diff(self.shares) > 0).all():
            raise ValueError(f"shares must rise from 0 to 1, got {self.shares}")
        if self.tokens[0] < 1 or not (np.diff(self.tokens) >= 0).all():
            raise ValueError(f"tokens must be >= 1 and must not fall, got {self.tokens}")
        if not 0 < self._bent_share < 1:
            raise ValueError(f"mean {self.mean} does not fit between the quantiles {self.tokens}")

    def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        return self.at(rng.random(count))

    def at(self, uniform: np.ndarray) -> np.ndarray:
        """A number of [0, 1) picks the segment and, bent, the place in it."""
        shares, tokens = np.array(self.shares), np.array(self.tokens, dtype=float)
        segment = np.searchsorted(shares, uniform, side="right") - 1
        place = (uniform - shares[segment]) / np.diff(shares)[segment]
        # E[place ** bend] = 1 / (1 + bend)
        bend = 1 / self._bent_share - 1
        drawn = tokens[segment] + np.diff(tokens)[segment] * place**bend
        rounded: np.ndarray = np.rint(drawn).astype(np.int64)
        return rounded

    @property
    def _bent_share(self) -> float:
        """Where in its segment a length lies on average, if the mean is to be the published one."""
        weights = np.diff(self.shares)
        lowest = float(weights @ np.array(self.tokens[:-1]))
        return (self.mean - lowest) / float(weights @ np.diff(self.tokens))


class PublishedTraffic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One service of Azure's 2024 week."""

    requests: int
    days: int
    input_tokens: QuantileTable
    output_tokens: QuantileTable
    hour_load: Mapping[str, float]
    """Load of the peak, the median and the trough hour as a share of the peak's."""
    hour_load_note: str

    def draw(self, count: int, rng: np.random.Generator) -> Lengths:
        return Lengths(self.input_tokens.draw(count, rng), self.output_tokens.draw(count, rng))


class _Azure2024(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    conversation: PublishedTraffic
    code: PublishedTraffic


@cache
def azure_2024(service: str) -> PublishedTraffic:
    """`conversation` or `code`."""
    data = resources.files("bench.workloads").joinpath("data", "azure_2024.json").read_bytes()
    published = msgspec.json.decode(data, type=_Azure2024)
    services = {"conversation": published.conversation, "code": published.code}
    if service not in services:
        raise ValueError(f"service must be one of {sorted(services)}, got {service!r}")
    return services[service]
