"""Which transfers the bandwidth benchmark makes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.bandwidth.__main__ import FULL, SMOKE
from bench.bandwidth.shapes import Grid, Shape

GRID = Grid(
    total_buffer_size=1024,
    start_block_size=4,
    max_block_size=256,
    start_batch_size=1,
    max_batch_size=64,
    num_iter=1,
    warmup_iter=0,
)


@pytest.mark.parametrize("batch_size", [2, 4, 5, 7, 16, 17, 64, 256, 1000, 4096])
def test_no_two_neighbours_follow_each_other(batch_size: int) -> None:
    order = Shape(block_size=1, batch_size=batch_size).order()
    assert sorted(order) == list(range(batch_size))
    assert all(order[at + 1] != order[at] + 1 for at in range(batch_size - 1))


def test_shapes_are_the_steps_that_fit_the_buffer() -> None:
    found = [(shape.block_size, shape.batch_size) for shape in GRID.shapes()]
    assert found == [(4, 1), (4, 16), (4, 64), (32, 1), (32, 16), (32, 32), (256, 1), (256, 4)]


@pytest.mark.parametrize("grid", [FULL, SMOKE], ids=["full", "smoke"])
def test_the_shipped_sizes_fill_their_buffer(grid: Grid) -> None:
    totals = {shape.total_bytes for shape in grid.shapes()}
    assert max(totals) == grid.total_buffer_size
    assert max(totals) >= 256e6 or grid is SMOKE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_iter": 0}, "--num-iter must be >= 1, got 0"),
        ({"warmup_iter": -1}, "--warmup-iter must be >= 0, got -1"),
        (
            {"start_block_size": 512},
            "--start-block-size must be <= --max-block-size (256), got 512",
        ),
        ({"start_batch_size": 65}, "--start-batch-size must be <= --max-batch-size (64), got 65"),
        ({"total_buffer_size": 3}, "--total-buffer-size must hold the smallest transfer (4 bytes)"),
    ],
)
def test_a_grid_without_transfers_is_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=r"--") as caught:
        replace(GRID, **changes)
    assert message in str(caught.value)
