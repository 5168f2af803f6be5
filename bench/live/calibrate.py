"""Measured before the first cell, through the coordinator: what this machine can do.

Isolated prefill and decode give the SLOs (TTFT 5 x isolated prefill, TPOT 5 x batch-1 decode), a
short saturation by the normal mix gives the scale of the rates that are tried for the capacity
(bench.live.capacity). All models are saturated at once: in the cells they share the machine too."""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import time
from typing import TYPE_CHECKING

import msgspec

from bench.live.capacity import capacity_per_s, try_rates
from bench.live.client import complete, within
from bench.live.lengths import draw_lengths
from bench.live.plan import NormalRequest
from bench.live.records import Calibration, ModelCalibration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import aiohttp

    from bench.live.client import Completion
    from bench.live.settings import Settings

TOKEN = "live-calibration"
WARM_UP_PROMPT_TOKENS = 96
LENGTHS_DRAWN = 64
"""Stratified lengths per turn of a saturated engine's callers."""


class NotSaturated(Exception):
    """Fewer than two requests finished in the saturation: `saturation_s` is too short here."""


class Calibrator:
    def __init__(self, http: aiohttp.ClientSession, base_url: str, settings: Settings) -> None:
        self._http = http
        self._base_url = base_url
        self._settings = settings
        self._numbers = itertools.count()

    async def measure(self, models: Sequence[str]) -> Calibration:
        """Raises CallFailed or NotSaturated."""
        for model in models:  # the first use of an engine is slow
            await self._one(model, WARM_UP_PROMPT_TOKENS, 4)
        isolated = {model: await self._isolated(model) for model in models}
        rates = await asyncio.gather(*(self._saturated(model) for model in models))
        start = Calibration(
            models={
                model: ModelCalibration(
                    prefill_fixed_s=fixed_s,
                    prefill_s_per_token=s_per_token,
                    decode_s=decode_s,
                    saturated_per_s=rate,
                )
                for (model, (fixed_s, s_per_token, decode_s)), rate in zip(
                    isolated.items(), rates, strict=True
                )
            }
        )
        tried = await try_rates(self._http, self._base_url, start, self._settings)
        return Calibration(
            models={
                name: msgspec.structs.replace(
                    model,
                    tried=tuple(tried[name]),
                    capacity_per_s=capacity_per_s(tried[name]),
                )
                for name, model in start.models.items()
            }
        )

    async def _isolated(self, model: str) -> tuple[float, float, float]:
        settings = self._settings
        points = [
            (prompt_tokens, (await self._one(model, prompt_tokens, 2)).ttft_s)
            for _ in range(settings.calibration_rounds)
            for prompt_tokens in settings.calibration_prompts
        ]
        steps_s: list[float] = []
        for _ in range(settings.calibration_rounds):
            short = settings.calibration_prompts[0]
            steps_s += (await self._one(model, short, settings.decode_tokens)).itl_s
        return (*fit_line(points), statistics.median(steps_s))

    async def _saturated(self, model: str) -> float:
        settings = self._settings
        began_s = time.perf_counter()
        finished_s: list[float] = []
        lengths = _endless(model, settings)

        async def caller() -> None:
            while True:
                prompt_tokens, output_tokens = next(lengths)
                await self._one(model, prompt_tokens, output_tokens)
                finished_s.append(time.perf_counter() - began_s)

        callers = asyncio.gather(*(caller() for _ in range(settings.saturation_callers)))
        try:
            async with asyncio.timeout(settings.saturation_s):
                await callers
        except TimeoutError:
            pass
        return throughput([at for at in finished_s if at >= settings.saturation_warm_up_s], model)

    async def _one(self, model: str, prompt_tokens: int, output_tokens: int) -> Completion:
        request = NormalRequest(
            key=f"calibration/{next(self._numbers)}",
            model=model,
            at_s=0.0,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
        )
        async with within(self._settings.call_timeout_s, request.key):
            return await complete(
                self._http, self._base_url, model, request.prompt_ids(), output_tokens, TOKEN
            )


def fit_line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Seconds before any token and per token; never below zero, whatever the noise."""
    slope, intercept = statistics.linear_regression(*zip(*points, strict=True))
    return max(0.0, intercept), max(0.0, slope)


def throughput(finished_s: Sequence[float], model: str) -> float:
    """From the first to the last finished request: the ends of the window cut nothing off."""
    if len(finished_s) < 2 or finished_s[-1] <= finished_s[0]:
        raise NotSaturated(f"{model}: {len(finished_s)} requests finished after the warm-up")
    return (len(finished_s) - 1) / (finished_s[-1] - finished_s[0])


def _endless(model: str, settings: Settings) -> Iterator[tuple[int, int]]:
    chance = random.Random(f"{settings.seed}/saturation/{model}")
    while True:
        for length in draw_lengths(LENGTHS_DRAWN, settings.length_scale, chance):
            yield length.prompt_tokens, length.output_tokens
