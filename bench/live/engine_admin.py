"""What is asked of a running engine between two cells: another controller, an empty cache."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import aiohttp

from bench.live.errors import EngineUnwilling
from engine.control import APPLIED, REFUSED, control_xargs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from configs.schema import InstanceConfig

RESET_TIMEOUT_S = 30.0
RESET_RETRY_S = 0.5
ADMIN_TIMEOUT = aiohttp.ClientTimeout(total=60)


async def change(
    http: aiohttp.ClientSession,
    name: str,
    instance: InstanceConfig,
    changes: Mapping[str, object],
    secret: str,
) -> bool:
    """False: this engine knows no control request. Raises EngineUnwilling if it refuses."""
    url, xargs = instance.url, control_xargs(name, changes, secret)
    body = {"model": instance.model, "prompt": [1], "max_tokens": 1, "vllm_xargs": xargs}
    answer = await _post(http, f"{url}/v1/completions", body)
    reason = str((answer.get("choices") or [{}])[0].get("stop_reason") or "")
    if reason.startswith(REFUSED):
        raise EngineUnwilling(f"{url}: {dict(changes)}: {reason}")
    return reason.startswith(APPLIED)


async def reset_cache(http: aiohttp.ClientSession, url: str) -> None:
    """vLLM refuses while a request holds blocks: what the last cell left behind may still end."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + RESET_TIMEOUT_S
    while not (await _post(http, f"{url}/reset_prefix_cache", None)).get("success"):
        if loop.time() > deadline_s:
            raise EngineUnwilling(
                f"{url}: the prefix cache was not reset within {RESET_TIMEOUT_S:g} s: a request "
                "still holds blocks"
            )
        await asyncio.sleep(RESET_RETRY_S)


async def _post(http: aiohttp.ClientSession, url: str, body: Any) -> dict[str, Any]:
    try:
        async with http.post(url, json=body, timeout=ADMIN_TIMEOUT) as response:
            text = await response.text()
            if response.status != 200:
                raise EngineUnwilling(f"{url}: HTTP {response.status}: {text[:500]}")
            answer: dict[str, Any] = json.loads(text)
            return answer
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise EngineUnwilling(f"{url}: {type(error).__name__}: {error}") from error
