"""What D's metrics say of one pull."""

from __future__ import annotations

from bench.bandwidth.engine_pull import Pull, end_to_end_json, measured, told

METRICS = """\
# HELP vllm:nixl_xfer_time_seconds Histogram of transfer duration.
# TYPE vllm:nixl_xfer_time_seconds histogram
vllm:nixl_xfer_time_seconds_bucket{engine="0",le="+Inf",model_name="wide"} 2.0
vllm:nixl_xfer_time_seconds_count{engine="0",model_name="wide"} 2.0
vllm:nixl_xfer_time_seconds_sum{engine="0",model_name="wide"} 0.25
# TYPE vllm:nixl_post_time_seconds histogram
vllm:nixl_post_time_seconds_count{engine="0",model_name="wide"} 2.0
vllm:nixl_post_time_seconds_sum{engine="0",model_name="wide"} 0.125
# TYPE vllm:nixl_bytes_transferred histogram
vllm:nixl_bytes_transferred_sum{engine="0",model_name="wide"} 3000.0
# TYPE vllm:nixl_num_descriptors histogram
vllm:nixl_num_descriptors_sum{engine="0",model_name="wide"} 32.0
"""


def a_pull(transfer_s: float, descriptors: int = 16) -> Pull:
    return Pull(
        transfer_s=transfer_s,
        post_s=0.01,
        pulled_bytes=1_600_000,
        descriptors=descriptors,
        end_to_end_s=transfer_s + 0.1,
        local_s=0.05,
    )


def test_sums_and_number_of_all_transfers_are_read() -> None:
    assert told(METRICS) == {
        "count": 2.0,
        "transfer_s": 0.25,
        "post_s": 0.125,
        "bytes": 3000.0,
        "descriptors": 32.0,
    }
    assert told("")["count"] == 0


def test_a_raw_transfer_of_the_same_shape_has_as_many_descriptors_and_bytes() -> None:
    row = measured([a_pull(0.1), a_pull(0.2), a_pull(0.2, descriptors=20)])
    assert (row.shape.block_size, row.shape.batch_size) == (100_000, 16)
    assert row.descriptors == 16
    assert [round(timing.post_to_done_s, 6) for timing in row.timings] == [0.1, 0.2, 0.2]


def test_the_end_to_end_time_is_apart() -> None:
    shown = end_to_end_json([a_pull(0.1), a_pull(0.1)])
    assert shown["median_transfer_ms"] == 100.0
    assert shown["median_end_to_end_ms"] == 200.0
    assert shown["median_local_ms"] == 50.0
    assert shown["descriptors_per_pull"] == [16, 16]
