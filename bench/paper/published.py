"""The paper's numbers and model pairs, typed; both files name the source of every number."""

from __future__ import annotations

# Read at run time too: msgspec decodes by these annotations.
from collections.abc import Mapping  # noqa: TC003
from functools import cache
from importlib import resources

import msgspec


class PublishedValue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    metric: str
    group: str
    cluster: str
    approach: str
    value: float
    source: str


class PublishedPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a sensitivity: the value of a metric at one setting."""

    sweep: str
    metric: str
    approach: str
    at: float
    value: float
    source: str


class PublishedCut(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What shadow takes off the router's own bill at the same accuracy."""

    benchmark: str
    cost_cut_pct: float
    source: str


class _Published(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    values: tuple[PublishedValue, ...]
    sensitivities: tuple[PublishedPoint, ...]
    cost_cuts: tuple[PublishedCut, ...]


class Pairs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    pairs: Mapping[str, tuple[tuple[str, str], ...]]
    """By benchmark."""
    setups: Mapping[str, tuple[str, str]]
    """One pair per benchmark: for the quick run and the sensitivities."""
    setups_note: str
    candidates: Mapping[str, tuple[str, ...]]
    """Of a router with more than two models: it has the first ones."""
    candidates_note: str
    sessions_per_s: Mapping[str, float]
    """Of a cluster with four instances per model."""
    sessions_per_s_note: str


@cache
def published() -> _Published:
    return msgspec.json.decode(_data("published.json"), type=_Published)


@cache
def pairs() -> Pairs:
    return msgspec.json.decode(_data("pairs.json"), type=Pairs)


def _data(name: str) -> bytes:
    return resources.files("bench.paper").joinpath("data", name).read_bytes()
