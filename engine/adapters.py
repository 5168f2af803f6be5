"""Which LoRA adapters the step that is being planned may carry.

vLLM looks at them when it admits a request and asserts that those of all running ones fit into
`max_loras`. A hidden shadow was admitted long ago, and requests that came since may have filled the
places: showing it beside them would end the engine.

Host: engine.planning."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm.config.lora import LoRAConfig
    from vllm.v1.request import Request


class AdapterPlaces:
    """Of one step; `take` uses them up."""

    def __init__(self, config: LoRAConfig | None, running: Iterable[Request]) -> None:
        self._places = 0 if config is None else config.max_loras
        self._taken: set[int] = set()
        if config is not None:
            self._taken.update(r.lora_request.lora_int_id for r in running if r.lora_request)

    def take(self, request: Request) -> bool:
        """Whether the step may carry this request, too."""
        if request.lora_request is None:
            return True
        adapter = request.lora_request.lora_int_id
        if adapter not in self._taken and len(self._taken) >= self._places:
            return False
        self._taken.add(adapter)
        return True
