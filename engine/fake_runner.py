"""vLLM's real schedulers without an engine: the model runner's answers are played.

One attention group; a token for each request whose scheduled tokens reach its end. The only
way to run async scheduling without a GPU, and thousands of steps in a second.

Hosts: tests, bench.scheduler_overhead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.structured_output import StructuredOutputManager

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.v1.core.kv_cache_utils import BlockHash
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

TOKEN = 7


def build_scheduler(
    scheduler_class: type[Any], *, asynchronous: bool, blocks: int, block_size: int, **engine: Any
) -> Any:
    """`engine`: vLLM's engine arguments, `model` among them: a folder with a config.json."""
    arguments = {"dtype": "float32", "enforce_eager": True, "enable_prefix_caching": True}
    config = EngineArgs(**(arguments | engine), block_size=block_size).create_engine_config()
    config.scheduler_config.async_scheduling = asynchronous  # the CPU platform forces it off
    config.cache_config.num_gpu_blocks = blocks
    attention = FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    return scheduler_class(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], attention)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
        log_stats=True,
    )


def block_hasher(block_size: int) -> Callable[[Request], list[BlockHash]]:
    init_none_hash(sha256)
    hasher: Callable[[Request], list[BlockHash]] = get_request_block_hasher(block_size, sha256)
    return hasher


class FakeRunner:
    """Answers each step once, in the order in which they were built."""

    def __init__(self) -> None:
        self._prompt_tokens: dict[str, int] = {}

    def answer(
        self, output: SchedulerOutput, transfers: KVConnectorOutput | None = None
    ) -> ModelRunnerOutput:
        computed = {}
        for data in output.scheduled_new_reqs:
            self._prompt_tokens[data.req_id] = len(data.prompt_token_ids or ())
            computed[data.req_id] = data.num_computed_tokens
        cached = output.scheduled_cached_reqs
        computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        names = list(output.num_scheduled_tokens)
        ends = {name: computed[name] + output.num_scheduled_tokens[name] for name in names}
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[[TOKEN] * (ends[n] >= self._prompt_tokens[n]) for n in names],
            kv_connector_output=transfers,
        )
