"""P and D with host tiers, over real NIXL: D pulls only what neither its pool nor its tier has."""

from __future__ import annotations

import json
import random
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from coordinator.local_cluster import LocalCluster
from engine.marks import Marks
from kv_transport.kv_params import PREFILL_LEG_KV_PARAMS
from policy.vocabulary import RequestClass
from tests.integration.client import until
from tests.integration.real_cluster import START_TIMEOUT_S, on_free_ports
from tests.integration.test_visible import scraped

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.vllm_cpu, pytest.mark.nixl]

PREFILL, DECODE = "tiny-a-p", "tiny-a-d"
BLOCK = 32
SHADOW = Marks(request_class=RequestClass.SHADOW)


@pytest.fixture(scope="module")
def cluster(
    needs_tiny: None, needs_nixl: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """D's pool holds 4,096 tokens."""
    folder = tmp_path_factory.mktemp("host_tier_pd")
    config = on_free_ports(
        "tiny_pd",
        folder,
        only=(PREFILL, DECODE),
        models={"tiny-a": {"max_model_len": 4096}},
        instances={DECODE: {"engine_args": {"num_gpu_blocks_override": 129}}},
        shadow={"kv_cap_share": 1.0, "idle_age_s": 0.0},
        host_tier={"size_gb": 0.2},
    )
    with LocalCluster(
        config, folder / "run", coordinator=False, start_timeout_s=START_TIMEOUT_S
    ) as started:
        yield started


def text_of(tokens: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(10, 400) for _ in range(tokens)]


def ask(
    cluster: LocalCluster, instance: str, prompt: list[int], max_tokens: int = 1, **more: Any
) -> Any:
    body = {
        "model": "tiny-a",
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        **more,
    }
    request = urllib.request.Request(
        cluster.config.instances[instance].url + "/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def handed_over(
    cluster: LocalCluster, prompt: list[int], max_tokens: int = 8, marks: Marks | None = None
) -> Any:
    """Prefilled on P, decoded on D; D's answer."""
    marked = {} if marks is None else {"vllm_xargs": marks.to_xargs()}
    prefilled = ask(
        cluster, PREFILL, prompt, kv_transfer_params=dict(PREFILL_LEG_KV_PARAMS), **marked
    )
    hand_off = prefilled["kv_transfer_params"]
    return ask(cluster, DECODE, prompt, max_tokens, kv_transfer_params=hand_off, **marked)


def token_ids(answer: Any) -> list[int]:
    ids: list[int] = answer["choices"][0]["token_ids"]
    return ids


def alone(cluster: LocalCluster, prompt: list[int], max_tokens: int = 8) -> list[int]:
    """As computed on P, where nothing of this tenant is cached."""
    return token_ids(ask(cluster, PREFILL, prompt, max_tokens, cache_salt=f"alone-{len(prompt)}"))


def pulled_bytes(cluster: LocalCluster) -> float:
    url = cluster.config.instances[DECODE].url + "/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        float(line.split()[-1])
        for line in lines
        if line.startswith("vllm:nixl_bytes_transferred_sum")
    )


def restored_blocks(cluster: LocalCluster) -> float:
    series = scraped(cluster, DECODE)
    return series["host_tier_bytes_total", "out"] / block_bytes(cluster)


def block_bytes(cluster: LocalCluster) -> float:
    """By one block that reaches D's tier."""
    before = scraped(cluster, DECODE)["host_tier_bytes_total", "in"]
    ask(cluster, DECODE, text_of(BLOCK + 1, seed=int(before) % 1000 + 500))
    after = until(
        lambda: scraped(cluster, DECODE)["host_tier_bytes_total", "in"],
        lambda value: value > before,
    )
    return float(after - before)


def fill_ds_pool(cluster: LocalCluster) -> None:
    for seed in (71, 72):
        ask(cluster, DECODE, text_of(4000, seed))


def test_of_3000_tokens_of_which_2048_are_in_the_tier_952_are_pulled(
    cluster: LocalCluster,
) -> None:
    text = text_of(3000, 1)
    handed_over(cluster, text[:2048])
    first_bytes = pulled_bytes(cluster)
    token_bytes = first_bytes / 2048
    fill_ds_pool(cluster)
    restored = restored_blocks(cluster)
    before = pulled_bytes(cluster)
    answer = handed_over(cluster, text)
    assert restored_blocks(cluster) - restored == 2048 // BLOCK
    whole_blocks = -(-952 // BLOCK) * BLOCK
    assert pulled_bytes(cluster) - before == pytest.approx(whole_blocks * token_bytes)
    assert token_ids(answer) == alone(cluster, text)


def test_what_came_only_by_a_shadow_pull_is_restored_for_a_call(cluster: LocalCluster) -> None:
    text = text_of(1024, 2)  # one push
    handed_over(cluster, text, max_tokens=1, marks=SHADOW)
    until(
        lambda: scraped(cluster, DECODE)["host_tier_entries", "shadow"],
        lambda entries: entries >= 1024 // BLOCK,
    )
    fill_ds_pool(cluster)
    restored = restored_blocks(cluster)
    call = text + text_of(100, 3)
    answer = handed_over(cluster, call)
    assert restored_blocks(cluster) - restored == 1024 // BLOCK
    assert token_ids(answer) == alone(cluster, call)
