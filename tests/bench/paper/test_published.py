"""Every number of the paper has a place in our tables, and a source."""

from __future__ import annotations

import pytest

from bench.paper.experiments import APPROACHES, ClusterKind, full_scale, planned, quick_scale
from bench.paper.published import pairs, published
from bench.paper.sweeps import SWEEPS
from bench.paper.tables import (
    ALL,
    BENCHMARKS,
    CODING_GROUP,
    CONTEXT_BINS,
    EXTRA,
    SIZE_BINS,
)
from bench.sim.hardware import LatencyMode, architectures
from bench.study.compare import BY_KEY
from bench.study.load import checks
from bench.workloads.sessions import session_kinds

OF_ORACLE = ("oracle_share_switch", "oracle_share_llm")
GROUPS = {
    ALL, BENCHMARKS, CODING_GROUP, *pairs().pairs,
    *(group for group, _, _ in (*SIZE_BINS, *CONTEXT_BINS)),
}  # fmt: skip


@pytest.mark.parametrize("value", published().values, ids=str)
def test_a_published_value_is_one_that_we_measure(value: object) -> None:
    from bench.paper.published import PublishedValue

    assert isinstance(value, PublishedValue)
    assert value.metric in {*BY_KEY, *EXTRA, *OF_ORACLE}
    assert value.group in GROUPS
    assert value.approach in APPROACHES[ClusterKind(value.cluster)]
    assert value.source


def test_a_published_sensitivity_lies_on_one_of_our_sweeps() -> None:
    sweeps = {sweep.key: sweep for sweep in SWEEPS}
    for point in published().sensitivities:
        sweep = sweeps[point.sweep]
        assert point.at in sweep.values, point
        assert point.metric == sweep.metric, point
        assert point.approach in sweep.approaches, point


def test_no_value_is_listed_twice() -> None:
    keys = [(v.metric, v.group, v.cluster, v.approach) for v in published().values]
    assert len(set(keys)) == len(keys)


def test_the_study_has_the_paper_s_pairs_seeds_and_hours() -> None:
    scale = full_scale()
    assert len(scale.pairs) == 22
    assert {kind: len(listed) for kind, listed in pairs().pairs.items()} == {
        "xRouteBench": 5, "FusionBench": 5, "Router-R1": 6, "GHCP-coding": 6,
    }  # fmt: skip
    cells = list(planned(scale, LatencyMode.VLLM_TESTBED))
    assert len(cells) == 22 * 9 * len(ClusterKind)
    assert len({cell.config.model_dump_json() for cell in cells}) == len(cells)
    assert {cell.config.run.measured_s for cell in cells} == {600, 1800}


def test_all_that_is_planned_can_be_simulated() -> None:
    assert {pair.small for pair in full_scale().pairs} <= set(architectures())
    assert set(pairs().sessions_per_s) <= set(session_kinds())
    for cell in planned(quick_scale(), LatencyMode.KERNEL):
        assert checks(cell.config) == []


def test_every_sweep_changes_something_that_stays_valid() -> None:
    from bench.paper.sensitivity import sweep_cells

    by_sweep: dict[str, set[str]] = {}
    for cell in sweep_cells(quick_scale(), LatencyMode.VLLM_TESTBED):
        assert checks(cell.plan.config) == []
        # As a file would have to be: nothing that a sweep sets is beyond the limits.
        text = cell.plan.config.model_dump_json()
        assert type(cell.plan.config).model_validate_json(text, strict=True) == cell.plan.config
        by_sweep.setdefault(cell.sweep.key, set()).add(text)
    for sweep in SWEEPS:
        assert sweep.default in sweep.values or sweep.change.__name__ == "_router"
        assert len(by_sweep[sweep.key]) == len(sweep.values) * 4 * 3
