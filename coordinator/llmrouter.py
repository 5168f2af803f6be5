"""LLMRouter's classes (ulab-uiuc/LLMRouter) behind our `python` router.

    router:
      kind: python
      path: coordinator.llmrouter:LlmRouter
      options: {path: "llmrouter.models:MFRouter", yaml_path: mfrouter.yaml,
                names: {qwen2.5-7b-instruct: small, llama3-70b-instruct: large}}
      timeout_s: 2.0     # they embed the query: not on the event loop

Any class with `route_single({"query": text}) -> {"model_name": name}` will do. The query is the end
of the prompt, because a router of single questions was never shown a history. LLMRouter itself is
not installed by us."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from coordinator.router_port import RouterFailed
from routing.step_view import step_view

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coordinator.router_port import SessionView


class LlmRouter:
    """`names`: what our configuration calls their models; those that it leaves out have one name
    in both."""

    def __init__(self, path: str, yaml_path: str, names: Mapping[str, str] | None = None) -> None:
        module, _, name = path.partition(":")
        self._router: Any = getattr(importlib.import_module(module), name)(yaml_path)
        self._names = dict(names or {})

    def choose(self, view: SessionView, models: Sequence[str]) -> str:
        query = "".join(step_view(view.prompt_json).texts.tail)
        answer = self._router.route_single({"query": query})
        theirs = answer.get("model_name") if isinstance(answer, dict) else None
        if not isinstance(theirs, str):
            raise RouterFailed(f"route_single gave no model_name, but {answer!r:.100}")
        return self._names.get(theirs, theirs)
