"""What a running engine says of itself, and the two legs of a call sent to it by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

from kv_transport.kv_params import PREFILL_LEG_KV_PARAMS
from tests.integration.client import CALL_TIMEOUT_S, until

if TYPE_CHECKING:
    from coordinator.local_cluster import LocalCluster


def restart(cluster: LocalCluster, name: str) -> None:
    """Returns when the coordinator sends calls there again."""
    cluster.restart(name)
    until(lambda: unready(cluster), lambda reason: reason is None)


def unready(cluster: LocalCluster) -> str | None:
    answer = httpx.get(f"{cluster.url}/ready", timeout=5)
    return None if answer.is_success else answer.text


def alive(cluster: LocalCluster, name: str) -> bool:
    try:
        return httpx.get(f"{cluster.config.instances[name].url}/health", timeout=5).is_success
    except httpx.TransportError:
        return False


def series(cluster: LocalCluster, name: str, *series: str) -> float:
    """Sum over the labels of all of them."""
    text = httpx.get(f"{cluster.config.instances[name].url}/metrics", timeout=5).text
    starts = tuple(f"{one}{{" for one in series)
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(starts))


def running_requests(cluster: LocalCluster, name: str) -> float:
    return series(cluster, name, "vllm:num_requests_running", "vllm:num_requests_waiting")


def kv_usage(cluster: LocalCluster, name: str) -> float:
    """Share of the pool that somebody holds: what is only cached counts as free."""
    return series(cluster, name, "vllm:kv_cache_usage_perc")


def prefilled(cluster: LocalCluster, name: str, prompt: list[int], salt: str) -> dict[str, Any]:
    """The hand-off of a P leg."""
    answer = _complete(
        cluster, name, prompt, salt, max_tokens=1, kv_transfer_params=PREFILL_LEG_KV_PARAMS
    )
    handoff: dict[str, Any] = answer["kv_transfer_params"]
    return handoff


def decoded(
    cluster: LocalCluster,
    name: str,
    prompt: list[int],
    salt: str,
    handoff: dict[str, Any] | None = None,
    max_tokens: int = 24,
) -> list[int]:
    """Token ids of a D leg."""
    more = {} if handoff is None else {"kv_transfer_params": handoff}
    answer = _complete(
        cluster,
        name,
        prompt,
        salt,
        max_tokens=max_tokens,
        ignore_eos=True,
        return_token_ids=True,
        **more,
    )
    ids: list[int] = answer["choices"][0]["token_ids"]
    return ids


def _complete(
    cluster: LocalCluster, name: str, prompt: list[int], salt: str, **more: Any
) -> dict[str, Any]:
    instance = cluster.config.instances[name]
    body = {"model": instance.model, "prompt": prompt, "cache_salt": salt, "temperature": 0}
    reply = httpx.post(f"{instance.url}/v1/completions", json=body | more, timeout=CALL_TIMEOUT_S)
    assert reply.is_success, reply.text
    answer: dict[str, Any] = reply.json()
    return answer
