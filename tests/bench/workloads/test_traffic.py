"""Drawn lengths have the published quantiles, and arrivals the rate that was asked for."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.workloads.lengths import PublishedTraffic, QuantileTable, azure_2024
from bench.workloads.trace import Trace
from bench.workloads.traffic import (
    Load,
    drawn_traffic,
    load_windows,
    replayed_traffic,
)

SERVICES = ["conversation", "code"]


def a_trace(arrival_s: list[float]) -> Trace:
    count = len(arrival_s)
    return Trace(
        name="a trace",
        arrival_s=np.array(arrival_s, dtype=float),
        input_tokens=np.arange(1, count + 1),
        output_tokens=np.arange(1, count + 1) * 10,
    )


def the_bytes(trace: Trace) -> bytes:
    columns = (trace.arrival_s, trace.input_tokens, trace.output_tokens)
    return b"".join(column.tobytes() for column in columns)


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("column", ["input_tokens", "output_tokens"])
def test_drawn_lengths_have_the_published_quantiles_and_mean(service: str, column: str) -> None:
    table: QuantileTable = getattr(azure_2024(service), column)
    drawn = table.draw(400_000, np.random.default_rng(1))
    inner = slice(1, -1)
    found = np.quantile(drawn, table.shares[inner])
    np.testing.assert_allclose(found, table.tokens[inner], rtol=0.04, atol=1)
    assert drawn.min() >= table.tokens[0]
    assert drawn.max() <= table.tokens[-1]
    # Rounding to whole tokens moves the mean of a law whose median is 8.
    assert drawn.mean() == pytest.approx(table.mean, rel=0.03)


@pytest.mark.parametrize("service", SERVICES)
def test_peak_hour_is_the_unit(service: str) -> None:
    loads = azure_2024(service).hour_load
    assert loads["peak"] == 1 > loads["median"] > loads["trough"] > 0


@pytest.mark.parametrize("burstiness", [1.0, 0.3])
def test_drawn_traffic_has_its_rate_and_burstiness(burstiness: float) -> None:
    rng = np.random.default_rng(2)
    traffic = drawn_traffic(azure_2024("conversation"), 20, 2000, rng, burstiness=burstiness)
    gaps_s = np.diff(traffic.arrival_s)
    assert traffic.arrival_s[0] == 0
    assert traffic.arrival_s[-1] < 2000
    assert traffic.rate_per_s == pytest.approx(20, rel=0.03)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(burstiness**-0.5, rel=0.05)
    assert traffic.input_tokens.max() <= 8192
    assert traffic.output_tokens.max() <= 1024


@settings(max_examples=20)
@given(st.integers(0, 2**63), st.floats(0.1, 50), st.floats(1, 500))
def test_same_seed_same_bytes(seed: int, rate_per_s: float, duration_s: float) -> None:
    trace = a_trace([0, 1, 1, 4, 9])
    drawn, again = (
        drawn_traffic(azure_2024("code"), rate_per_s, duration_s, np.random.default_rng(seed))
        for _ in range(2)
    )
    assert the_bytes(drawn) == the_bytes(again)
    replayed, again = (
        replayed_traffic(trace, rate_per_s, duration_s, np.random.default_rng(seed))
        for _ in range(2)
    )
    assert the_bytes(replayed) == the_bytes(again)
    assert (replayed.arrival_s < duration_s).all()


def test_replay_keeps_order_and_bursts_and_goes_round() -> None:
    trace = a_trace([0, 1, 1, 4, 8])
    replayed = replayed_traffic(trace, 1.0, 1000, np.random.default_rng(3))
    # 0.5 requests per second become 1: each gap halves, also the one between two rounds.
    assert set(np.round(np.diff(replayed.arrival_s), 9)) == {0.5, 0.0, 1.5, 2.0, 1.0}
    following = dict(zip([1, 2, 3, 4, 5], [2, 3, 4, 5, 1], strict=True))
    pairs = zip(replayed.input_tokens[:-1], replayed.input_tokens[1:], strict=True)
    assert all(following[int(a)] == b for a, b in pairs)
    assert (replayed.output_tokens == 10 * replayed.input_tokens).all()
    assert replayed.rate_per_s == pytest.approx(1.0, rel=0.01)


def test_windows_are_the_busiest_the_median_and_the_quietest() -> None:
    counts = [2, 8, 4, 1]
    arrival_s = [10 * i + j / 100 for i, count in enumerate(counts) for j in range(count)]
    windows = load_windows(a_trace([*arrival_s, 40.0]), window_s=10)
    assert {name: (w.start_s, w.load) for name, w in windows.items()} == {
        "peak": (10, 1.0),
        "median": (20, 0.5),
        "trough": (30, 0.125),
    }
    with pytest.raises(ValueError, match="spans 40 s, less than 3600 s"):
        load_windows(a_trace([*arrival_s, 40.0]))


def test_load_is_a_share_of_capacity() -> None:
    assert Load(capacity_per_s=10, rho=0.7, hour_load=0.5).rate_per_s == pytest.approx(3.5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Load(capacity_per_s=0, rho=0.7), "load.capacity_per_s must be > 0, got 0"),
        (lambda: Load(capacity_per_s=1, rho=7), "load.rho must be above 0 and at most 2, got 7"),
        (lambda: Load(capacity_per_s=1, rho=1, hour_load=0), "load.hour_load must be above 0"),
        (lambda: azure_2024("images"), "service must be one of .*, got 'images'"),
        (
            lambda: drawn_traffic(azure_2024("code"), 1, 1, np.random.default_rng(0), burstiness=0),
            "burstiness must be > 0, got 0",
        ),
        (
            lambda: drawn_traffic(azure_2024("code"), 0, 1, np.random.default_rng(0)),
            "rate_per_s and duration_s must be > 0, got 0 and 1",
        ),
        (
            lambda: replayed_traffic(a_trace([0, 1]), 1, -1, np.random.default_rng(0)),
            "rate_per_s and duration_s must be > 0, got 1 and -1",
        ),
    ],
)
def test_wrong_input_is_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shares": [0, 0.5]}, "two lists of the same length"),
        ({"shares": [0, 0.5, 0.9]}, "shares must rise from 0 to 1"),
        ({"tokens": [5, 3, 9]}, "tokens must be >= 1 and must not fall"),
        ({"mean": 50}, "mean 50.0 does not fit between the quantiles"),
        ({"median": 5}, "unknown field `median`"),
    ],
)
def test_wrong_table_is_named(changes: dict[str, Any], message: str) -> None:
    table = {"shares": [0, 0.5, 1], "tokens": [1, 5, 9], "mean": 5, **changes}
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(table, QuantileTable)


def test_a_law_draws_both_lengths() -> None:
    law = azure_2024("code")
    assert isinstance(law, PublishedTraffic)
    drawn = law.draw(5, np.random.default_rng(0))
    assert len(drawn.input_tokens) == len(drawn.output_tokens) == 5
