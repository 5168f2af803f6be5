"""The host tier's two classes: who is evicted for whom, and what may be read when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.host_tier import HostTier, LoadCost, LoadReason, load_or_compute, shadow_load
from policy.vocabulary import KvClass, RequestClass

NORMAL, ROUTED, SHADOW = RequestClass.NORMAL, RequestClass.ROUTED, RequestClass.SHADOW
IDLE_AGE_S = 5.0


def a_tier(slots: int, *stored: tuple[str, RequestClass, float]) -> HostTier[str]:
    """Each letter of a stored text is one key."""
    tier: HostTier[str] = HostTier(slots, IDLE_AGE_S)
    for text, taker, now_s in stored:
        put(tier, text, taker, now_s)
    return tier


def put(tier: HostTier[str], text: str, taker: RequestClass = NORMAL, now_s: float = 100.0) -> str:
    """What was evicted for it."""
    stored = tier.store(text, taker, now_s, own=set(text))
    tier.arrived(list(stored.slots))
    tier.used(text, taker, now_s)
    tier.check()
    return "".join(stored.evicted)


def held(tier: HostTier[str]) -> str:
    return "".join(sorted(key for key in "abcdefghijklmnopqrstuvwxyz" if tier.can_read(key)))


@pytest.mark.parametrize(
    ("stored", "text", "taker", "evicted"),
    [
        ([("abc", NORMAL, 0.0)], "d", NORMAL, ""),
        ([("abcd", NORMAL, 0.0)], "ef", NORMAL, "dc"),
        ([("ab", NORMAL, 0.0), ("cd", SHADOW, 50.0)], "ef", NORMAL, "dc"),
        ([("ab", NORMAL, 0.0), ("cd", SHADOW, 50.0)], "efg", ROUTED, "dcb"),
        ([("ab", NORMAL, 0.0), ("cd", SHADOW, 99.0)], "ef", NORMAL, "dc"),
        ([("ab", NORMAL, 0.0), ("cd", SHADOW, 50.0)], "ef", SHADOW, "dc"),
        ([("ab", NORMAL, 0.0), ("cd", SHADOW, 99.0)], "ef", SHADOW, "ba"),
        ([("ab", NORMAL, 99.0), ("cd", SHADOW, 99.0)], "ef", SHADOW, ""),
        ([("abcd", NORMAL, 99.0)], "abef", NORMAL, "dc"),
    ],
    ids=[
        "a free slot first",
        "least recently used, its tail first",
        "a shadow's entries before any normal one",
        "then normal ones",
        "however recently the shadow's were used",
        "a shadow takes a shadow's",
        "or what is idle",
        "and nothing that was just used",
        "nothing of its own prefix",
    ],
)
def test_who_is_evicted(
    stored: list[tuple[str, RequestClass, float]], text: str, taker: RequestClass, evicted: str
) -> None:
    tier = a_tier(4, *stored)
    assert put(tier, text, taker, now_s=100.0) == evicted


def test_what_finds_no_slot_is_the_tail_of_the_prefix() -> None:
    tier = a_tier(4, ("ab", NORMAL, 99.0))
    stored = tier.store("cdef", SHADOW, 100.0, own=set("cdef"))
    assert list(stored.slots) == ["c", "d"]
    assert (stored.evicted, stored.refused) == ([], 2)


def test_what_is_on_its_way_is_neither_read_nor_evicted_nor_stored_twice() -> None:
    tier = a_tier(2)
    tier.store("ab", NORMAL, 0.0, own=set("ab"))
    assert tier.has("a")
    assert not tier.can_read("a")
    assert tier.store("ab", NORMAL, 50.0, own=set("ab")).slots == {}
    assert tier.store("cd", NORMAL, 50.0, own=set("cd")) == ({}, [], 2)
    tier.arrived("a")
    assert held(tier) == "a"
    tier.lost("b")
    assert put(tier, "c") == ""


def test_what_is_read_is_not_evicted() -> None:
    tier = a_tier(2, ("ab", NORMAL, 0.0))
    assert len(set(tier.pin("ab"))) == 2
    tier.pin("a")
    tier.unpin("ab")
    assert put(tier, "cd") == "b"
    tier.unpin("a")
    assert put(tier, "e") == "a"


@pytest.mark.parametrize(
    ("by", "kv_class"),
    [(NORMAL, KvClass.NORMAL), (ROUTED, KvClass.NORMAL), (SHADOW, KvClass.SHADOW)],
)
def test_a_call_promotes_what_a_shadow_left(by: RequestClass, kv_class: KvClass) -> None:
    tier = a_tier(4, ("abc", SHADOW, 0.0))
    tier.used("abx", by, 10.0)
    tier.check()
    assert tier.entries(kv_class) == (2 if kv_class is KvClass.NORMAL else 3)
    assert tier.promotions == (2 if kv_class is KvClass.NORMAL else 0)


def test_a_shadow_that_finds_a_normal_entry_keeps_it_in_its_class() -> None:
    tier = a_tier(2, ("ab", NORMAL, 0.0))
    tier.used("a", SHADOW, 90.0)
    assert tier.entries(KvClass.NORMAL) == 2
    assert put(tier, "c", NORMAL) == "b"


def test_an_entry_that_is_used_becomes_the_last_to_go() -> None:
    tier = a_tier(3, ("ab", NORMAL, 0.0), ("c", NORMAL, 1.0))
    tier.used("ab", NORMAL, 2.0)
    assert put(tier, "d") == "c"
    assert put(tier, "e") == "b"
    assert tier.evictions == {KvClass.NORMAL: 2, KvClass.SHADOW: 0}


def test_an_emptied_tier_reads_nothing_and_has_every_slot() -> None:
    tier = a_tier(3, ("abc", NORMAL, 0.0))
    tier.pin("a")
    tier.clear()
    tier.check()
    assert held(tier) == ""
    assert put(tier, "def") == ""


@given(
    st.lists(
        st.tuples(
            st.text("abcdefgh", min_size=1, max_size=6).map(lambda t: "".join(dict.fromkeys(t))),
            st.sampled_from(list(RequestClass)),
            st.booleans(),
        ),
        max_size=60,
    )
)
def test_slots_add_up_whatever_happens(events: list[tuple[str, RequestClass, bool]]) -> None:
    tier: HostTier[str] = HostTier(5, IDLE_AGE_S)
    for now_s, (text, taker, arrives) in enumerate(events):
        stored = tier.store(text, taker, 3.0 * now_s, own=set(text))
        keys = list(stored.slots)
        tier.arrived(keys) if arrives else tier.lost(keys)
        tier.used(text, taker, 3.0 * now_s)
        tier.check()
        assert len(keys) + stored.refused <= len(text)
        assert not set(stored.evicted) & set(text)


@pytest.mark.parametrize(
    ("tokens", "copied", "reason"),
    [
        (300, 5e-6, LoadReason.LOADED),
        (290, 5e-6, LoadReason.TOO_FEW_TOKENS),
        (10_000, 2.7e-5, LoadReason.LINK_TOO_SLOW),
        (10_000, 1e-4, LoadReason.LINK_TOO_SLOW),
    ],
)
def test_a_hit_is_copied_if_that_is_sooner(tokens: int, copied: float, reason: LoadReason) -> None:
    cost = LoadCost(iteration_s=0.0065, s_per_computed_token=2.7e-5, s_per_copied_token=copied)
    assert load_or_compute(tokens, cost) is reason


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        (4_000, LoadReason.LOADED),
        (4_001, LoadReason.OVER_BUDGET),
        (100, LoadReason.TOO_FEW_TOKENS),
    ],
)
def test_a_shadow_is_copied_only_within_the_budget_of_the_iteration(
    tokens: int, reason: LoadReason
) -> None:
    cost = LoadCost(iteration_s=0.0065, s_per_computed_token=2.7e-5, s_per_copied_token=5e-6)
    assert shadow_load(tokens, cost, budget_s=0.02) is reason
