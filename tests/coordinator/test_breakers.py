"""An instance or a pair that fails again and again is left alone; retries are bounded."""

from __future__ import annotations

from coordinator.instances import BREAKER
from coordinator.node_state import PAIR_BREAKER
from tests.coordinator.call_rig import CHAT, TWO_PD, a_chat, a_coordinator
from tests.coordinator.test_node_state import Clock, a_session, some_instances

TWO_EACH = {
    "small-p": ("small", "prefill"),
    "small-p2": ("small", "prefill"),
    "small-d": ("small", "decode"),
    "small-d2": ("small", "decode"),
}


def test_an_instance_that_fails_its_calls_is_left_alone_until_a_trial() -> None:
    clock = Clock()
    cluster = some_instances(clock)
    sick = cluster.instances["p1"]
    for _ in range(BREAKER.failures):
        cluster.failed(sick, "HTTP 500")
    assert cluster.placement.place(a_session(), "small", 1100).prefill.name == "p2"
    clock.now_s = BREAKER.open_s
    pair = cluster.placement.place(a_session(), "small", 1100)
    assert pair.prefill is sick, "the trial"
    cluster.placed(pair)
    assert cluster.placement.place(a_session(), "small", 1100).prefill.name == "p2"
    cluster.served(sick)
    assert cluster.placement.place(a_session(), "small", 1100).prefill is sick


def test_where_all_are_sick_somebody_is_still_asked() -> None:
    cluster = some_instances()
    for name in ("p1", "p2", "d1", "d2"):
        for _ in range(BREAKER.failures):
            cluster.failed(cluster.instances[name], "HTTP 500")
    assert not cluster.placement.place(a_session(), "small", 1100).colocated


def test_a_pair_that_moves_no_kv_is_parted_and_both_go_on_with_others() -> None:
    clock = Clock()
    cluster = some_instances(clock)
    d1, d2 = cluster.instances["d1"], cluster.instances["d2"]
    for _ in range(PAIR_BREAKER.failures):
        cluster.not_pulled("p1", d1)
    pair = cluster.placement.place(a_session(), "small", 1100)
    assert (pair.prefill.name, pair.decode) == ("p2", d1)
    assert cluster.cut_off_from(d2) == []
    clock.now_s = PAIR_BREAKER.open_s
    assert cluster.placement.place(a_session(), "small", 1100).prefill.name == "p1"
    cluster.pulled("p1", d1, 0.1)
    assert not cluster._pairs


def test_a_d_that_can_pull_from_nobody_computes_alone() -> None:
    cluster = some_instances()
    for prefill in ("p1", "p2"):
        for _ in range(PAIR_BREAKER.failures):
            cluster.not_pulled(prefill, cluster.instances["d1"])
    pair = cluster.placement.place(a_session(), "small", 1100)
    assert pair.colocated
    assert pair.decode.name == "d1"


def test_an_answer_as_late_as_a_pull_that_was_given_up_counts_as_one() -> None:
    cluster = some_instances()
    d1 = cluster.instances["d1"]
    for _ in range(PAIR_BREAKER.failures):
        cluster.pulled("p1", d1, 20.0)
    assert cluster.cut_off_from(d1) == ["p1"]


def test_a_removed_instance_leaves_no_pair_behind() -> None:
    cluster = some_instances()
    cluster.not_pulled("p1", cluster.instances["d1"])
    cluster.remove(cluster.instances["p1"])
    assert not cluster._pairs


async def test_calls_that_fail_on_d_part_the_pair() -> None:
    async with a_coordinator(TWO_PD) as rig:
        for _ in range(PAIR_BREAKER.failures):
            rig.engines["small-d"].faults.fail_next(500)
            await rig.chat(a_chat())
        asked = len(rig.calls("small-p"))
        assert (await rig.chat(a_chat())).status_code == 200
        assert len(rig.calls("small-p")) == asked, "D computed it alone"


async def test_when_everything_fails_retries_end_before_the_calls_do() -> None:
    async with a_coordinator(TWO_EACH) as rig:
        for name in ("small-d", "small-d2"):
            rig.engines[name].faults.fail_next(500, times=1000)
        for _ in range(60):
            reply = await rig.client.post(CHAT, json=a_chat())
            assert reply.status_code == 502
        text = (await rig.client.get("/metrics")).text
        assert 'shadowprefill_retries_refused_total{leg="decode"}' in text
