"""KV pulls of a real engine pair, one at a time, by NIXL's own telemetry.

vLLM adds each transfer's telemetry to histograms of D. One pull at a time, so that the difference
of their sums is that of one pull, exactly."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from bench.bandwidth.rows import ENGINE_PULL, Measured, Timing
from bench.bandwidth.shapes import Shape
from kv_transport.kv_params import PREFILL_LEG_KV_PARAMS, remote_kv_of

if TYPE_CHECKING:
    from collections.abc import Sequence

ANSWER_TIMEOUT = aiohttp.ClientTimeout(total=300)
METRICS_TIMEOUT_S = 20.0
_METRICS_POLL_S = 0.05
_TOKEN_IDS = range(10, 250)
_NAMES = {
    "vllm:nixl_xfer_time_seconds": "transfer_s",
    "vllm:nixl_post_time_seconds": "post_s",
    "vllm:nixl_bytes_transferred": "bytes",
    "vllm:nixl_num_descriptors": "descriptors",
}


class PullMissing(Exception):
    """D answered without a pull that NIXL tells of: this pair transfers nothing over NIXL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    transfer_s: float
    """From post to done."""
    post_s: float
    pulled_bytes: int
    descriptors: int
    end_to_end_s: float
    """D's whole answer of one token: handshake, polling once per iteration, one forward pass."""
    local_s: float
    """The same answer once more, when D holds all of it: what of the above is no pull."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    model: str
    prefill_url: str
    decode_url: str
    prompt_tokens: int

    async def pulls(self, count: int, seed: int = 1) -> list[Pull]:
        """Raises PullMissing, aiohttp.ClientError."""
        chance = random.Random(seed)
        async with aiohttp.ClientSession(timeout=ANSWER_TIMEOUT) as http:
            return [
                await self._pull(http, chance.choices(_TOKEN_IDS, k=self.prompt_tokens))
                for _ in range(count)
            ]

    async def _pull(self, http: aiohttp.ClientSession, prompt: list[int]) -> Pull:
        before = await self._told(http)
        answer = await self._post(http, self.prefill_url, prompt, PREFILL_LEG_KV_PARAMS)
        kv = remote_kv_of(answer.get("kv_transfer_params")).take()
        began_s = time.perf_counter()
        await self._post(http, self.decode_url, prompt, kv)
        end_to_end_s = time.perf_counter() - began_s
        began_s = time.perf_counter()
        await self._post(http, self.decode_url, prompt, None)
        local_s = time.perf_counter() - began_s
        one = await self._after(http, before)
        return Pull(
            transfer_s=one["transfer_s"],
            post_s=one["post_s"],
            pulled_bytes=round(one["bytes"]),
            descriptors=round(one["descriptors"]),
            end_to_end_s=end_to_end_s,
            local_s=local_s,
        )

    async def _after(
        self, http: aiohttp.ClientSession, before: dict[str, float]
    ) -> dict[str, float]:
        """D's front end learns of a transfer with a later iteration."""
        deadline_s = time.perf_counter() + METRICS_TIMEOUT_S
        while (now := await self._told(http))["count"] == before["count"]:
            if time.perf_counter() > deadline_s:
                raise PullMissing(
                    f"{self.decode_url}: no transfer in its metrics {METRICS_TIMEOUT_S:g} s after "
                    "an answer with a hand-off"
                )
            await asyncio.sleep(_METRICS_POLL_S)
        one = {name: now[name] - before[name] for name in now}
        if one["count"] != 1:
            raise PullMissing(f"{self.decode_url}: {one['count']:g} transfers for one hand-off")
        return one

    async def _told(self, http: aiohttp.ClientSession) -> dict[str, float]:
        async with http.get(f"{self.decode_url}/metrics") as response:
            response.raise_for_status()
            return told(await response.text())

    async def _post(
        self, http: aiohttp.ClientSession, url: str, prompt: list[int], kv: dict[str, Any] | None
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model, "prompt": prompt, "max_tokens": 1, "ignore_eos": True,
            "temperature": 0,
        }  # fmt: skip
        if kv is not None:
            body["kv_transfer_params"] = kv
        async with http.post(f"{url}/v1/completions", json=body) as response:
            response.raise_for_status()
            answer: dict[str, Any] = await response.json()
            return answer


def told(text: str) -> dict[str, float]:
    """Sums over all transfers so far, and how many they were."""
    sums = dict.fromkeys(("count", *_NAMES.values()), 0.0)
    for family in text_string_to_metric_families(text):
        name = _NAMES.get(family.name)
        if name is None:
            continue
        for sample in family.samples:
            if sample.name.endswith("_sum"):
                sums[name] += sample.value
            if sample.name.endswith("_count") and name == "transfer_s":
                sums["count"] += sample.value
    return sums


def measured(pulls: Sequence[Pull]) -> Measured:
    """The shape is that of a raw transfer with as many descriptors and bytes."""
    descriptors = statistics.mode(pull.descriptors for pull in pulls)
    block_size = statistics.mode(pull.pulled_bytes for pull in pulls) // descriptors
    return Measured(
        name=ENGINE_PULL,
        shape=Shape(block_size=block_size, batch_size=descriptors),
        descriptors=descriptors,
        timings=tuple(
            Timing(post_s=pull.post_s, tx_s=pull.transfer_s - pull.post_s) for pull in pulls
        ),
    )


def end_to_end_json(pulls: Sequence[Pull]) -> dict[str, Any]:
    return {
        "pulled_bytes": statistics.mode(pull.pulled_bytes for pull in pulls),
        "descriptors_per_pull": [pull.descriptors for pull in pulls],
        "median_transfer_ms": _ms([pull.transfer_s for pull in pulls]),
        "median_post_ms": _ms([pull.post_s for pull in pulls]),
        "median_end_to_end_ms": _ms([pull.end_to_end_s for pull in pulls]),
        "median_local_ms": _ms([pull.local_s for pull in pulls]),
        "median_end_to_end_gb_per_s": round(
            statistics.median(pull.pulled_bytes / 1e9 / pull.end_to_end_s for pull in pulls), 3
        ),
    }


def _ms(values_s: Sequence[float]) -> float:
    return round(1e3 * statistics.median(values_s), 3)
