"""Where calls go, and where a shadow is computed."""

from __future__ import annotations

import pytest

from coordinator.calls import CallKind
from coordinator.errors import NoInstance
from coordinator.node_state import Cluster
from coordinator.sessions import Session
from policy.placement import PlacementReason
from tests.coordinator.call_rig import a_cluster

LAYOUT = {
    "p1": ("small", "prefill", "http://h:1"),
    "p2": ("small", "prefill", "http://h:2"),
    "d1": ("small", "decode", "http://h:3"),
    "d2": ("small", "decode", "http://h:4"),
}
LIMITS = {"first_byte_timeout_s": 10.0}


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def some_instances(clock: Clock | None = None) -> Cluster:
    cluster = Cluster(a_cluster(LAYOUT, LIMITS), clock or Clock())
    for instance in cluster.instances.values():
        instance.healthy = True
    return cluster


def a_session() -> Session:
    session = Session(id="s", tenant="t", kind=CallKind.CHAT, identified=True)
    session.warmth_of("small").prefill_instance = "p1"
    session.warmth_of("small").decode_instance = "d1"
    session.warmth_of("small").own_tokens = 1000
    return session


def test_a_call_stays_where_its_prefix_is() -> None:
    pair = some_instances().placement.place(a_session(), "small", 1100)
    assert (pair.prefill.name, pair.decode.name) == ("p1", "d1")
    assert pair.prefill_reason is PlacementReason.STICKY


def test_a_call_moves_when_a_cold_prefill_elsewhere_is_done_first() -> None:
    cluster = some_instances()
    cluster.instances["p1"].inflight_tokens = 9000
    pair = cluster.placement.place(a_session(), "small", 1100)
    assert (pair.prefill.name, pair.prefill_reason) == ("p2", PlacementReason.MOVED_FASTER)


def test_a_shadow_is_computed_on_the_sticky_instance_however_busy_it_is() -> None:
    cluster = some_instances()
    cluster.instances["p1"].inflight_tokens = 9000
    assert cluster.sticky_pair(a_session(), "small").prefill.name == "p1"


def test_the_first_shadow_binds_the_call_that_follows() -> None:
    for number in range(20):
        cluster = some_instances()
        session = Session(id=f"s{number}", tenant="t", kind=CallKind.CHAT, identified=True)
        pair = cluster.sticky_pair(session, "small")
        session.warmth_of("small").shadow_tokens = 1000
        cluster.instances[pair.prefill.name].inflight_tokens = 100
        assert cluster.placement.place(session, "small", 1100)[:2] == pair[:2]


def test_a_shadow_whose_instance_is_lost_starts_again_on_another_one() -> None:
    cluster, session = some_instances(), a_session()
    cluster.refused(cluster.instances["p1"], "gone")
    assert cluster.sticky_pair(session, "small").prefill.name == "p2"
    warmth = session.warmth_of("small")
    assert (warmth.prefill_instance, warmth.own_tokens) == ("p2", 0)


def test_without_a_healthy_p_the_pair_is_d_alone_and_binds_nothing() -> None:
    cluster, session = some_instances(), a_session()
    for name in ("p1", "p2"):
        cluster.refused(cluster.instances[name], "gone")
    assert cluster.placement.place(session, "small", 100).colocated
    assert cluster.sticky_pair(session, "small").prefill.name == "d1"
    assert session.warmth_of("small").prefill_instance == "p1"


def test_nobody_left_is_an_error_with_a_time_to_retry() -> None:
    cluster = some_instances()
    for name in ("d1", "d2"):
        cluster.refused(cluster.instances[name], "gone")
    with pytest.raises(NoInstance, match="decode") as caught:
        cluster.placement.place(a_session(), "small", 100)
    assert caught.value.retry_after_s is not None


def test_an_instance_that_let_a_call_time_out_is_avoided_for_a_while() -> None:
    clock = Clock()
    cluster, session = some_instances(clock), a_session()
    cluster.timed_out(cluster.instances["p1"], "silent")
    assert cluster.placement.place(session, "small", 1100).prefill.name == "p2"
    clock.now_s = 10.0
    assert cluster.placement.place(session, "small", 1100).prefill.name == "p1"


def test_a_suspect_is_still_better_than_nobody() -> None:
    cluster, session = some_instances(), a_session()
    for name in ("p1", "p2"):
        cluster.timed_out(cluster.instances[name], "silent")
    assert not cluster.placement.place(session, "small", 1100).colocated


@pytest.mark.parametrize("hands_over", [True, False])
def test_a_calls_kv_leaves_p_until_d_has_answered_or_failed(hands_over: bool) -> None:
    cluster = some_instances()
    pair = cluster.placement.place(a_session(), "small", 100)
    with pair.handing_over(hands_over):
        assert pair.prefill.handoffs_out == hands_over
        assert pair.decode.handoffs_out == 0
    with pytest.raises(TimeoutError), pair.handing_over(hands_over):
        raise TimeoutError
    assert pair.prefill.handoffs_out == 0
