"""The example prices a switch, and works against a coordinator as it is."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.coordinator.call_rig import COLOCATED, a_coordinator

FILE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "switch_aware_agent.py"


@pytest.fixture(scope="module")
def agent() -> Any:
    spec = importlib.util.spec_from_file_location("switch_aware_agent", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def a_quote(large_ttft_ms: float, large_price: float, available: bool = True) -> dict[str, Any]:
    small = {
        "model": "small",
        "available": True,
        "estimated_ttft_ms": 100.0,
        "input_price": None,
    }
    large = {
        "model": "large",
        "available": available,
        "estimated_ttft_ms": large_ttft_ms,
        "input_price": large_price,
    }
    return {"quotes": [small, large]}


@pytest.mark.parametrize(
    ("quote", "expected"),
    [
        (a_quote(200.0, 0.001), "large"),
        (a_quote(30_000.0, 0.001), "small"),
        (a_quote(200.0, 0.5), "small"),
        (a_quote(200.0, 0.001, available=False), "small"),
    ],
    ids=["warm", "slow_to_switch", "dear_to_switch", "down"],
)
def test_a_switch_is_made_only_if_it_is_worth_its_cost(
    agent: Any, quote: dict[str, Any], expected: str
) -> None:
    assert agent.best_model(quote, {"small": 0.8, "large": 1.0}) == expected


async def test_it_runs_against_a_coordinator(agent: Any) -> None:
    async with a_coordinator(COLOCATED, shadow=True) as rig:

        def steps() -> list[str]:
            with httpx.Client(base_url=rig.url, timeout=60) as client:
                messages = [{"role": "user", "content": "hello"}]
                values = ({"small": 0.9, "large": 0.5}, {"small": 0.1, "large": 0.9})
                return [agent.step(client, "s", messages, each)[0] for each in values]

        assert await asyncio.to_thread(steps) == ["small", "large"]
        session = (await rig.client.get("/v1/sessions/s")).json()
        assert [row["model"] for row in session["calls"]] == ["small", "large"]
