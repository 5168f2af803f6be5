"""The live benchmark where P and D are apart: the parts of a TTFT, and a run on fake engines."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import yaml
from rich.console import Console

from bench.demo.client import SessionCall
from bench.fake_engine import FakeApp, FakeEngine, create_app, serve_in_thread
from bench.live.cells import pd_matrix, pd_smoke_matrix
from bench.live.options import Options
from bench.live.pd_report import parts, pd_document
from bench.live.picks import switched
from bench.live.report import Run
from bench.live.settings import SMOKE
from bench.live.story import run_live
from bench.live.ttft_split import PARTS, with_account
from policy.vocabulary import Controller
from tests.bench.live_rows import CALIBRATION, a_call, a_result
from tests.bench.test_live_run import TINY
from tests.free_ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.live.records import CallRow

TOLD = SessionCall(call=2, shadow_tokens=64, p_leg_ms=300.0, p_queue_ms=120.0, d_leg_ms=150.0)


def a_pd_call(**given: Any) -> CallRow:
    given = {"p_instance": "small-p", "d_instance": "small-d", "transfer_ms": 90.0} | given
    return a_call(ttft_ms=500.0, **given)


def parts_of(row: CallRow) -> tuple[float | None, ...]:
    return tuple(getattr(row, part) for part in PARTS)


def test_the_parts_of_a_ttft_add_up_to_it() -> None:
    row = with_account(a_pd_call(), TOLD)
    assert parts_of(row) == (170.0, 180.0, 90.0, 60.0)
    assert sum(part or 0.0 for part in parts_of(row)) == row.ttft_ms
    assert row.shadow_tokens == 64


def test_a_prompt_that_d_computed_has_no_prefill_of_p() -> None:
    alone = SessionCall(call=2, d_leg_ms=400.0)
    row = with_account(a_pd_call(transfer_ms=30.0), alone)
    assert parts_of(row) == (100.0, 0.0, 30.0, 370.0)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (a_pd_call(transfer_ms=None), TOLD),
        (a_pd_call(), SessionCall(call=2, p_leg_ms=300.0)),
        (a_pd_call(d_instance="small-p"), TOLD),
        (a_pd_call(error="gone"), TOLD),
    ],
    ids=["d_tells_nothing", "no_stream", "one_engine", "failed"],
)
def test_where_something_is_not_told_there_are_no_parts(row: CallRow, told: SessionCall) -> None:
    assert parts_of(with_account(row, told)) == (None,) * 4


def test_the_report_names_three_systems_and_compares_two_with_off() -> None:
    def cell(controller: Controller, ttft_ms: float, *, pushes: bool = True) -> Any:
        row = with_account(a_pd_call(is_switch=True), TOLD)
        rows = [msgspec.structs.replace(row, ttft_ms=ttft_ms), a_call(key="s/3", call=3)]
        result = a_result(controller, rows)
        facts = msgspec.structs.replace(result.facts, pushes=pushes)
        return msgspec.structs.replace(result, facts=facts)

    cells = [
        cell(Controller.HARVEST_SLO, 100.0),
        cell(Controller.OFF, 400.0),
        cell(Controller.HARVEST_SLO, 200.0, pushes=False),
    ]
    run = Run(
        settings=SMOKE, calibration=CALIBRATION, cells=cells, wanted=pd_matrix(), cap_ms=500.0,
        conditions={},
    )  # fmt: skip
    told = pd_document(run)
    assert [cell["system"] for cell in told["cells"]] == [
        "off", "harvest-slo-on-p-only", "harvest-slo",
    ]  # fmt: skip
    assert told["cells"][1]["switch_ttft_parts_ms"]["prefill_ms"]["mean"] == 180.0
    changes = [
        (one["system"], one["differences"][0]["value"])
        for one in told["against_off"]
        if one["differences"][0]["metric"] == "switch_ttft_ms"
    ]
    assert changes == [("harvest-slo-on-p-only", -50.0), ("harvest-slo", -75.0)]
    assert parts([a_result(Controller.OFF, [a_call(is_switch=True)])], switched) is None


@contextlib.contextmanager
def two_pairs(folder: Path) -> Iterator[tuple[Path, dict[str, FakeEngine]]]:
    """A configuration of two models, P and D apart, on fake engines that run."""
    apps: dict[str, FakeApp] = {}
    instances: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        for model in ("small", "large"):
            for role in ("prefill", "decode"):
                name = f"{model}-{role[0]}"
                apps[name] = create_app(
                    model=model, role=role, output_tokens=6, chunk_delay_s=0.01,
                    prefill_s_per_token=0.0005,
                )  # fmt: skip
                apps[name].state.engine.queue_time_ms = 2.0
                url = stack.enter_context(serve_in_thread(apps[name]))
                port = int(url.rpartition(":")[2])
                place = {"port": port, "attach_url": url, "kv_port": free_ports(1)[0]}
                instances[name] = {"model": model, "role": role} | place
        model_config = {"path": "fake", "max_model_len": 8192, "slo": {"ttft_s": 1, "tpot_s": 0.2}}
        config = {
            "profile": "cpu",
            "models": {"small": model_config, "large": model_config},
            "instances": instances,
            "coordinator": {"port": free_ports(1)[0]},
        }
        path = folder / "cluster.yaml"
        path.write_text(yaml.safe_dump(config))
        yield path, {name: app.state.engine for name, app in apps.items()}


def shadow_pulls(engine: FakeEngine) -> int:
    """Requests for a shadow's KV that a D was sent."""
    return sum(
        (one.body.get("vllm_xargs") or {}).get("shadowprefill_class") == "shadow"
        for one in engine.generating()
    )


def test_off_on_p_only_and_with_pulls_are_measured_with_their_parts(tmp_path: Path) -> None:
    with two_pairs(tmp_path) as (config, engines):
        pulls: dict[str, int] = {}
        options = Options(
            config=config,
            folder=tmp_path / "out",
            settings=replace(TINY, calls_per_session=4, switch_probability=1.0),
            wanted=pd_smoke_matrix(),
            chosen=(),
            topology="pd",
        )
        for cell in pd_smoke_matrix():
            before = shadow_pulls(engines["small-d"]) + shadow_pulls(engines["large-d"])
            result = run_live(replace(options, chosen=[cell]), Console(quiet=True))
            after = shadow_pulls(engines["small-d"]) + shadow_pulls(engines["large-d"])
            pulls[cell.name] = after - before
    assert result is not None
    assert result["cells_done"] == 3
    off, on_p, with_pulls = result["cells"]
    assert pulls["load0.3-off-r1"] == pulls["load0.3-harvest-slo-on-p-only-r1"] == 0
    assert pulls["load0.3-harvest-slo-r1"] > 0
    assert off["shadow_tokens_used"]["total"] == 0
    assert on_p["shadow_tokens_used"]["total"] > 0
    for cell in (off, on_p, with_pulls):
        split = cell["switch_ttft_parts_ms"]
        assert set(split) == set(PARTS)
        total = sum(split[part]["mean"] for part in PARTS)
        assert total == pytest.approx(cell["switch_ttft_ms"]["mean"], abs=0.1)
        assert split["transfer_ms"]["mean"] == 2.0
        assert sum(one["total"] for one in cell["failed_calls"].values()) == 0
