"""What the live benchmark concludes from rows: pairs, intervals, the tax, the verdicts."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import msgspec
import pytest
from rich.console import Console

from bench.live.bootstrap import (
    Interval,
    difference,
    mean_interval,
    percent_difference,
    removed_share,
)
from bench.live.cells import full_matrix
from bench.live.compare import compare, matched, tax
from bench.live.figures import figures
from bench.live.picks import meets_slos, normal, switched, ttft
from bench.live.plot import write_png
from bench.live.report import Run, compared, document, verdict_line
from bench.live.settings import FULL
from bench.live.table import live_table
from bench.live.verdicts import verdicts
from policy.vocabulary import Controller
from tests.bench.live_rows import CALIBRATION, a_call, a_normal, a_result, a_trace

if TYPE_CHECKING:
    from pathlib import Path

    from bench.live.records import CallRow, CellResult


def pairs_of(
    count: int, factor: float, noise: float, seed: int = 1
) -> list[list[tuple[float, float]]]:
    """Calls of one repeat that differ tenfold among themselves, and by `factor` between the
    controllers."""
    chance = random.Random(seed)
    firsts = [chance.uniform(100, 1000) for _ in range(count)]
    return [[(first, first * factor * chance.uniform(1 - noise, 1 + noise)) for first in firsts]]


def test_pairing_sees_a_difference_that_the_calls_own_spread_would_hide() -> None:
    found = percent_difference(pairs_of(60, 0.9, noise=0.05))
    assert found is not None
    assert found.low < -10 < found.high < 0
    assert found.half_width < 3


def test_noise_without_a_difference_has_an_interval_around_zero() -> None:
    found = percent_difference(pairs_of(60, 1.0, noise=0.3))
    assert found is not None
    assert found.low < 0 < found.high


def test_intervals_repeat_and_narrow_with_more_pairs() -> None:
    few, many = (percent_difference(pairs_of(n, 0.8, noise=0.5)) for n in (20, 500))
    assert few == percent_difference(pairs_of(20, 0.8, noise=0.5))
    assert few is not None
    assert many is not None
    assert many.half_width < few.half_width / 2


def test_without_values_there_is_no_interval() -> None:
    assert mean_interval([]) is None
    assert percent_difference([]) is None
    assert difference([]) is None
    assert removed_share([], [[1.0]]) is None
    assert removed_share([[(2.0, 1.0)]], [[], []]) is None
    assert percent_difference([[], [(2.0, 1.0)]]) == Interval(-50.0, -50.0, -50.0)


def test_repeats_that_disagree_widen_an_interval_however_many_calls_they_have() -> None:
    """A machine that was slow during one cell says nothing about its controller."""
    factors = (0.9, 1.0, 1.1, 1.2, 1.3)
    repeats = [pairs_of(200, factor, noise=0.05, seed=at)[0] for at, factor in enumerate(factors)]
    found = percent_difference(repeats)
    at_once = percent_difference([[pair for one in repeats for pair in one]])
    assert found is not None
    assert at_once is not None
    assert found.value == pytest.approx(at_once.value)
    assert found.low < 0 < at_once.low
    assert mean_interval([[1.0] * 50, [2.0] * 50]) == Interval(1.5, 1.0, 2.0)


def test_repeats_that_agree_leave_the_interval_of_the_calls() -> None:
    repeats = [pairs_of(40, 0.8, noise=0.5, seed=at)[0] for at in range(5)]
    found = percent_difference(repeats)
    at_once = percent_difference([[pair for one in repeats for pair in one]])
    assert found is not None
    assert at_once is not None
    assert at_once.half_width <= found.half_width < 1.5 * at_once.half_width


@pytest.mark.parametrize(
    ("on", "floor", "expected"),
    [(200.0, 200.0, 1.0), (600.0, 200.0, 0.5), (1000.0, 200.0, 0.0), (1200.0, 200.0, -0.25)],
    ids=["all", "half", "nothing", "worse"],
)
def test_the_share_of_the_tax_that_is_gone(on: float, floor: float, expected: float) -> None:
    found = removed_share([[(1000.0, on)] * 5], [[floor] * 5])
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((expected,) * 3)


def test_a_tax_that_noise_could_explain_has_no_share() -> None:
    assert removed_share([[(1000.0, 500.0), (100.0, 90.0)]], [[900.0, 200.0]]) is None


def test_only_calls_that_ended_well_on_both_sides_are_pairs() -> None:
    off = a_result(Controller.OFF, [a_normal("a"), a_normal("b"), a_normal("c", error="x")])
    on = a_result(
        Controller.HARVEST_SLO,
        [a_normal("a", ttft_ms=90.0), a_normal("b", error="x"), a_normal("c"), a_normal("d")],
    )
    assert matched([off], [on], normal, ttft) == [[(300.0, 90.0)]]


def test_calls_are_paired_within_their_repeat() -> None:
    off = [a_result(Controller.OFF, [a_normal("a")], repeat=at) for at in (1, 2, 3)]
    on = [
        a_result(Controller.HARVEST_SLO, [a_normal("a", ttft_ms=90.0 * at)], repeat=at)
        for at in (3, 2)
    ]
    assert matched(off, on, normal, ttft) == [[], [(300.0, 180.0)], [(300.0, 270.0)]]


@pytest.mark.parametrize(
    ("row", "met"),
    [
        (a_normal(ttft_ms=1500.0, e2el_ms=1500 + 9 * 250.0), True),
        (a_normal(ttft_ms=1501.0), False),
        (a_normal(ttft_ms=300.0, e2el_ms=300 + 9 * 251.0), False),
        (a_normal(ttft_ms=300.0, e2el_ms=9999.0, output_tokens=1), True),
        (a_normal(error="refused"), False),
    ],
    ids=["at_both_limits", "late_first_token", "slow_tokens", "one_token", "failed"],
)
def test_a_request_meets_both_slos_or_none(row: CallRow, met: bool) -> None:
    assert meets_slos(row, CALIBRATION) is met


def a_load(
    load: float, on_switch_ms: float, on_call_ms: float = 2000.0, on_ttft_ms: float = 300.0
) -> list[CellResult]:
    """`off` and `harvest-slo`: forty switches of 1,000 ms beside stayed calls of 400 ms."""

    def rows(switch_ms: float, call_ms: float, ttft_ms: float) -> list[CallRow]:
        chance = random.Random(7)
        jitter = [chance.uniform(0.9, 1.1) for _ in range(40)]
        switches = [
            a_call(f"w{at}", is_switch=True, ttft_ms=switch_ms * by, e2el_ms=call_ms * by)
            for at, by in enumerate(jitter)
        ]
        stays = [a_call(f"t{at}", ttft_ms=400.0, e2el_ms=call_ms) for at in range(20)]
        others = [a_normal(f"n{at}", ttft_ms=ttft_ms * by) for at, by in enumerate(jitter)]
        return switches + stays + others

    return [
        a_result(Controller.OFF, rows(1000.0, 2000.0, 300.0), load=load),
        a_result(Controller.HARVEST_SLO, rows(on_switch_ms, on_call_ms, on_ttft_ms), load=load),
    ]


def a_run(cells: list[CellResult]) -> Run:
    return Run(
        settings=FULL,
        calibration=CALIBRATION,
        cells=cells,
        wanted=full_matrix(),
        cap_ms=500.0,
        conditions={"models": {"small": "a model"}},
    )


def outcomes(cells: list[CellResult]) -> dict[tuple[str, float], str]:
    found = verdicts(compared(a_run(cells)))
    return {(one.aim.split()[0] + " " + one.controller, one.load): one.outcome for one in found}


def test_the_floor_of_a_switch_is_a_call_that_stays() -> None:
    off, on = a_load(0.3, on_switch_ms=520.0)
    found = tax([off], [on], CALIBRATION)
    assert found["stayed"].floor_ms == 400.0
    assert found["stayed"].removed is not None
    assert found["stayed"].removed.value == pytest.approx(0.8, abs=0.02)
    # 200 uncached tokens on an idle engine: 100 ms + 200 x 2 ms.
    assert found["isolated"].floor_ms == pytest.approx(500.0)


@pytest.mark.parametrize(
    ("on_switch_ms", "outcome"), [(520.0, "passed"), (800.0, "failed")], ids=["most", "too_little"]
)
def test_sixty_percent_of_the_tax_is_the_aim(on_switch_ms: float, outcome: str) -> None:
    found = outcomes(a_load(0.3, on_switch_ms))
    assert found["at harvest-slo", 0.3] == outcome
    assert found["at harvest-slo", 0.5] == "not run"


def test_slower_calls_and_missed_slos_fail_and_equal_ones_pass() -> None:
    good = outcomes(a_load(0.7, on_switch_ms=500.0))
    bad = outcomes(a_load(0.7, on_switch_ms=500.0, on_call_ms=2100.0, on_ttft_ms=1600.0))
    assert good["LLM-call harvest-slo", 0.7] == good["normal harvest-slo", 0.7] == "passed"
    assert bad["LLM-call harvest-slo", 0.7] == bad["normal harvest-slo", 0.7] == "failed"


def test_a_wide_interval_is_inconclusive_and_never_passed() -> None:
    chance = random.Random(3)
    wild = [a_call(f"w{at}", is_switch=True, ttft_ms=chance.uniform(50, 3000)) for at in range(40)]
    off, on = a_load(0.3, on_switch_ms=500.0)
    on = a_result(Controller.HARVEST_SLO, [*wild, *(r for r in on.rows if not r.is_switch)])
    assert compare([off], [on], CALIBRATION)["switch_ttft_ms"].outcome == "inconclusive"
    assert outcomes([off, on])["at harvest-slo", 0.3] == "inconclusive"


@pytest.mark.parametrize(("failed_off", "outcome"), [(0, "inconclusive"), (2, "passed")])
def test_calls_that_failed_do_not_make_the_others_mean_better(
    failed_off: int, outcome: str
) -> None:
    """A call that never ended is slower than any, and is in no mean."""
    off, on = a_load(0.3, on_switch_ms=520.0)
    assert outcomes([off, on])["LLM-call harvest-slo", 0.3] == "passed"
    lost = [msgspec.structs.replace(row, error="not finished") for row in on.rows[:2]]
    on = a_result(Controller.HARVEST_SLO, [*lost, *on.rows[2:]])
    lost = [msgspec.structs.replace(row, error="not finished") for row in off.rows[2:4]]
    off = a_result(Controller.OFF, [*off.rows[:2], *lost[:failed_off], *off.rows[2 + failed_off :]])
    found = outcomes([off, on])
    assert found["LLM-call harvest-slo", 0.3] == outcome
    assert found["at harvest-slo", 0.3] == outcome
    (told,) = document(a_run([off, on]))["against_off"]
    of_calls = next(one for one in told["differences"] if one["metric"] == "llm_call_ms")
    assert (of_calls["failed_off"], of_calls["failed"]) == (failed_off, 2)


def test_a_baseline_must_show_harm_or_the_load_is_too_light() -> None:
    off, slow = a_load(0.7, on_switch_ms=500.0, on_ttft_ms=600.0)
    _, same = a_load(0.7, on_switch_ms=500.0)
    eager = a_result(Controller.EAGER, slow.rows, load=0.7)
    request = a_result(Controller.REQUEST, same.rows, load=0.7)
    found = outcomes([off, eager, request])
    assert found["shows eager", 0.7] == "passed"
    assert found["shows request", 0.7] == "failed"
    assert outcomes([off])["shows eager", 0.0] == "not run"


@pytest.mark.parametrize(
    ("waits_ms", "outcome"),
    [([100.0, 599.0], "passed"), ([100.0, 700.0], "failed"), ([], "inconclusive")],
    ids=["below", "above", "none"],
)
def test_an_arrival_waits_at_most_one_capped_iteration(waits_ms: list[float], outcome: str) -> None:
    off, on = a_load(0.3, on_switch_ms=500.0)
    on = a_result(Controller.HARVEST_SLO, on.rows, engines=a_trace(waits_ms))
    assert outcomes([off, on])["an harvest-slo", 0.3] == outcome
    told = figures([on], CALIBRATION, window_s=10.0, cap_ms=500.0)
    assert told["max_arrival_wait_ms"] == {
        "max": max(waits_ms, default=0.0),
        "per_repeat": [max(waits_ms, default=0.0)],
    }
    assert told["shadow_tokens_computed"]["total"] == 900


def test_figures_name_what_the_issue_asks_for_and_spread_per_repeat() -> None:
    cells = [
        a_result(Controller.OFF, [a_normal(), a_call(is_switch=True)], repeat=1),
        a_result(Controller.OFF, [a_normal(error="x"), a_call(ttft_ms=100.0)], repeat=2),
    ]
    found = figures(cells, CALIBRATION, window_s=10.0, cap_ms=500.0)
    assert found["switch_ttft_ms"]["per_repeat"] == [500.0, None]
    assert found["switch_ttft_ms"]["calls"] == 1
    assert found["normal_slo_attainment"]["per_repeat"] == [1.0, 0.0]
    assert found["goodput_per_s"] == {"mean": 0.05, "per_repeat": [0.1, 0.0]}
    assert found["failed_calls"]["normal"] == {"total": 1, "per_repeat": [0, 1]}
    assert found["shadow_tokens_computed"]["total"] == 800
    assert found["kv_cache_hit_percent"] == 80.0
    assert found["max_arrival_wait_ms"] is None
    assert found["energy_j_per_good_request"] is None
    assert (found["completed"], found["failed"]) == (1, 1)
    assert found["mean_ttft_ms"] == 300.0


def test_the_report_of_a_run_is_json_a_table_lines_and_a_picture(tmp_path: Path) -> None:
    run = a_run([*a_load(0.3, 500.0), *a_load(0.7, 600.0)])
    told = document(run)
    assert json.loads(json.dumps(told))["verdicts"] == told["verdicts"]
    assert told["cells_done"] == 4
    assert [cell["load"] for cell in told["cells"]] == [0.3, 0.3, 0.7, 0.7]
    console = Console(width=200)
    with console.capture() as shown:
        console.print(live_table(told["cells"], "title"))
    assert "harvest-slo" in shown.get()
    assert any("PASSED" in verdict_line(one) for one in verdicts(compared(run)))
    write_png(told["cells"], "title", tmp_path / "live.png")
    assert (tmp_path / "live.png").stat().st_size > 10_000


def test_different_prompts_under_two_controllers_are_seen() -> None:
    off = a_result(Controller.OFF, [a_call(prompt_digest="a", output_as_recorded=True)])
    on = a_result(Controller.HARVEST_SLO, [a_call(prompt_digest="b", output_as_recorded=False)])
    assert document(a_run([off, on]))["checks"] == {
        "prompts_equal": False,
        "outputs_as_recorded_share": 0.5,
    }
    assert document(a_run([off, off]))["checks"]["prompts_equal"] is True


def test_a_run_without_off_compares_nothing() -> None:
    _, on = a_load(0.3, 500.0)
    assert compared(a_run([on])) == []
    assert switched(on.rows[0])
