"""A class of LLMRouter's shape routes our calls."""

from __future__ import annotations

from typing import Any

from tests.coordinator.call_rig import COLOCATED, a_chat, a_coordinator, a_turn
from tests.coordinator.test_routers import chosen, metric

HERE = "tests.coordinator.test_llmrouter"


class TheirRouter:
    """As `MetaRouter` of LLMRouter: built from a YAML file, asked with a query."""

    def __init__(self, yaml_path: str) -> None:
        self.yaml_path = yaml_path

    def route_single(self, query: dict[str, Any]) -> dict[str, Any]:
        is_hard = query["query"].endswith("prove it")
        return query | {"model_name": "llama3-70b" if is_hard else "small"}


class TheirOther(TheirRouter):
    def route_single(self, query: dict[str, Any]) -> dict[str, Any]:
        return query


def a_router(name: str) -> dict[str, Any]:
    return {
        "kind": "python",
        "path": "coordinator.llmrouter:LlmRouter",
        "options": {
            "path": f"{HERE}:{name}",
            "yaml_path": "their.yaml",
            "names": {"llama3-70b": "large"},
        },
        "timeout_s": 10.0,
    }


async def test_it_is_asked_with_the_end_of_the_prompt_and_answers_by_our_names() -> None:
    async with a_coordinator(COLOCATED, router=a_router("TheirRouter")) as rig:
        assert await chosen(rig, 1) == ["small"]
        turns = a_turn("hello", "yes?", "prove it")
        reply = await rig.chat(a_chat(model="auto", messages=turns), x_session_id="t")
        assert reply.headers["x-shadowprefill-model"] == "large"


async def test_an_answer_without_a_model_is_a_failure() -> None:
    async with a_coordinator(COLOCATED, router=a_router("TheirOther")) as rig:
        assert await chosen(rig, 1) == ["small"]
        assert await metric(rig, "shadowprefill_router_failures_total") == 1
