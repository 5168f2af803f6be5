"""Which features of vLLM an engine with shadow work may use: a clear refusal at start otherwise.

What the arguments say is refused by the configuration check already (configs.features); an engine
that was started by hand, and what only the model's own configuration says, end here.

Host: engine.intake."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.kv_cache_interface import FullAttentionSpec, RSWASpec, iter_layer_specs

from configs.features import HOST_TIER_HAZARD, feature_problem
from engine.kv_connectors import (
    HOST_TIER_CONNECTOR,
    HOST_TIER_MODULE,
    UNION_CONNECTOR,
    UNION_MODULE,
)
from engine.params import CONNECTOR_MODULE
from policy.vocabulary import Role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

STOCK_CONNECTORS = ("NixlConnector", "NixlPullConnector", "NixlPushConnector")
_BETWEEN_P_AND_D = {("NixlConnector", CONNECTOR_MODULE), (UNION_CONNECTOR, UNION_MODULE)}
CONNECTORS = {
    Role.PREFILL: _BETWEEN_P_AND_D,
    Role.DECODE: _BETWEEN_P_AND_D,
    Role.COLOCATED: {(HOST_TIER_CONNECTOR, HOST_TIER_MODULE)},
}
"""By class and module."""
UNION_HAZARD = (
    "vLLM's own pair of connectors lets one pull into a block that the other is still to copy"
)


class FeatureRefused(ValueError):
    """The engine was started with something that shadow work does not go together with: change
    its arguments, or serve this model without shadowprefill."""


def check_features(config: VllmConfig, kv_cache: KVCacheConfig, role: Role) -> None:
    """Raises FeatureRefused with every problem at once."""
    problems = [
        *_arguments(config),
        *_connector(config, role),
        *_model(config),
        *_kv_groups(kv_cache),
    ]
    if problems:
        raise FeatureRefused("; and ".join(problems))


def _arguments(config: VllmConfig) -> Iterator[str]:
    """As they were given by hand, or became after vLLM completed them."""
    parallel, speculative = config.parallel_config, config.speculative_config
    # A rank of a dense model is told that it is alone; its index stays.
    ranks = max(parallel.data_parallel_size, parallel.data_parallel_index + 1)
    given = {
        "data_parallel_size": ranks,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "decode_context_parallel_size": parallel.decode_context_parallel_size,
        "prefill_context_parallel_size": parallel.prefill_context_parallel_size,
        "enable_chunked_prefill": config.scheduler_config.enable_chunked_prefill,
        "kv_offloading_size": config.cache_config.kv_offloading_size,
        "spec_method": None if speculative is None else speculative.method,
    }
    if not config.cache_config.enable_prefix_caching:
        yield "enable_prefix_caching must be true: shadow KV lives there"
    for flag, value in given.items():
        problem = feature_problem(flag, value)
        if problem is not None:
            yield f"{flag} {problem}"


def _connector(config: VllmConfig, role: Role) -> Iterator[str]:
    transfer = config.kv_transfer_config
    name = None if transfer is None else transfer.kv_connector
    if name in STOCK_CONNECTORS and transfer.kv_connector_module_path != CONNECTOR_MODULE:
        yield (
            f"kv_connector {name!r} must come from kv_connector_module_path {CONNECTOR_MODULE!r}, "
            f"got {transfer.kv_connector_module_path!r}: vLLM's own uses KV that was read after "
            "its lease had ended"
        )
        return
    if name is None or (name, transfer.kv_connector_module_path) in CONNECTORS[role]:
        return
    known = sorted(f"{connector} of {module}" for connector, module in CONNECTORS[role])
    hazard = UNION_HAZARD if role is Role.DECODE else HOST_TIER_HAZARD
    yield (
        f"kv_connector on a {role.value} instance must be {' or '.join(known)}, or be left out, "
        f"got {name!r}: {hazard}; host_tier in the configuration adds host memory"
    )


def _model(config: VllmConfig) -> Iterator[str]:
    model = config.model_config
    if model.is_encoder_decoder:
        yield (
            "the model is an encoder-decoder: a shadow is a prompt of token ids, without the input "
            "of an encoder; serve it without shadowprefill"
        )
    elif model.supports_multimodal_inputs:
        yield (
            "the model takes images, audio or video: a shadow is a prompt of token ids, and KV "
            "without those inputs helps no call; set language_model_only: true to serve text"
        )


def _kv_groups(kv_cache: KVCacheConfig) -> Iterator[str]:
    layers = [
        layer
        for group in kv_cache.kv_cache_groups
        for layer in iter_layer_specs(group.kv_cache_spec)
    ]
    kinds = ", ".join(sorted({type(layer).__name__ for layer in layers}))
    if kv_cache.has_mamba_layers:
        yield (
            f"the model has Mamba layers ({kinds}): their state is kept at few positions of a "
            "prompt, and a shadow that ends elsewhere warms nothing; serve it without shadowprefill"
        )
    elif len(kv_cache.kv_cache_groups) != 1:
        yield (
            f"the model's KV cache has {len(kv_cache.kv_cache_groups)} groups ({kinds}) and shadow "
            "blocks are counted in one; set disable_hybrid_kv_cache_manager: true"
        )
    elif not all(isinstance(layer, FullAttentionSpec) for layer in layers) or any(
        isinstance(layer, RSWASpec) for layer in layers
    ):
        yield (
            f"the model's KV cache ({kinds}) gives blocks back while a prompt is computed, and "
            "shadow blocks would be counted wrongly; set disable_sliding_window: true"
        )
