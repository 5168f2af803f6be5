"""nixlbench's columns, and what is said of them."""

from __future__ import annotations

import pytest

from bench.bandwidth.rows import (
    ENGINE_PULL,
    MEMCPY,
    NIXL_READ,
    NIXL_WRITE,
    Measured,
    Timing,
    ratios,
    slow_reads,
)
from bench.bandwidth.shapes import Shape

SHAPE = Shape(block_size=1_000_000, batch_size=100)
COLUMNS = (
    "Block Size (B)", "Batch Size", "B/W (GB/Sec)", "Avg Lat. (us)", "Avg Prep (us)",
    "P99 Prep (us)", "Avg Post (us)", "P99 Post (us)", "Avg Tx (us)", "P99 Tx (us)",
)  # fmt: skip


def a_measured(name: str, *seconds: float, shape: Shape = SHAPE) -> Measured:
    return Measured(name=name, shape=shape, timings=tuple(Timing(tx_s=one) for one in seconds))


def test_a_row_has_the_columns_of_nixlbench() -> None:
    timings = (
        Timing(prep_s=1e-4, post_s=0.01, tx_s=0.03),
        Timing(prep_s=3e-4, post_s=0.01, tx_s=0.05),
    )
    row = Measured(name=NIXL_READ, shape=SHAPE, descriptors=100, timings=timings).to_json()
    assert set(COLUMNS) < set(row)
    assert row["B/W (GB/Sec)"] == 2.0  # 200 MB in 0.1 s
    assert row["Avg Lat. (us)"] == 500.0  # per block
    assert (row["Avg Prep (us)"], row["Avg Post (us)"], row["Avg Tx (us)"]) == (200, 10_000, 40_000)
    assert row["median_gb_per_s"] == 2.0
    assert (row["descriptors"], row["transfers"]) == (100, 2)


def test_a_step_that_a_way_does_not_have_is_null() -> None:
    row = a_measured(MEMCPY, 0.1).to_json()
    assert row["Avg Post (us)"] is None
    assert row["P99 Prep (us)"] is None


def test_a_way_that_was_not_measured_says_why() -> None:
    row = Measured(name=ENGINE_PULL, shape=SHAPE, skipped="no engines").to_json()
    assert row == {
        "name": "engine_pull",
        "Block Size (B)": 1_000_000,
        "Batch Size": 100,
        "skipped": "no engines",
    }


def test_ratios_are_of_one_shape_and_leave_a_pause_of_the_machine_out() -> None:
    other = Shape(block_size=1, batch_size=1)
    rows = [
        a_measured(MEMCPY, 0.04, 0.04, 9.0),
        a_measured(NIXL_READ, 0.05, 0.05, 0.05),
        a_measured(NIXL_WRITE, 0.04),
        a_measured(NIXL_READ, 1.0, shape=other),
    ]
    found = ratios(rows, SHAPE)
    assert found == {
        "engine_pull_to_nixl_read": None,
        "nixl_read_to_memcpy": 0.8,
        "nixl_write_to_memcpy": 1.0,
    }
    assert ratios([*rows, a_measured(ENGINE_PULL, 0.1)], SHAPE)["engine_pull_to_nixl_read"] == 0.5


@pytest.mark.parametrize(
    ("read_s", "warned"),
    [((0.21, 0.3), True), ((0.19, 9.0), False)],
    ids=["never_fast", "paused_once"],
)
def test_reads_that_are_never_fast_beside_fast_writes_are_warned_of(
    read_s: tuple[float, ...], warned: bool
) -> None:
    rows = [a_measured(NIXL_READ, *read_s), a_measured(NIXL_WRITE, 0.1, 0.1)]
    texts = slow_reads(rows)
    assert bool(texts) == warned
    assert all("READ << WRITE at 100 x 1000000 B" in text for text in texts)
    assert slow_reads(rows[1:]) == []
