"""Features of vLLM: refused at start with the reason, or shown to work beside shadow work.

Here with vLLM's real configuration and scheduler; test_features_engine.py with real engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.request import LoRARequest
from vllm.v1.core.kv_cache_utils import get_kv_cache_groups
from vllm.v1.engine import FinishReason
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    MambaSpec,
    SlidingWindowSpec,
)

from colocated.scheduler import ColocatedScheduler
from engine.features import FeatureRefused, check_features
from policy.vocabulary import Role
from tests.engine.scheduler_world import (
    BLOCK,
    MODEL,
    World,
    normal,
    params,
    prompt,
    routed,
    scheduler_of,
    shadow,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheSpec

pytestmark = pytest.mark.vllm_cpu

SHAPE: dict[str, Any] = {
    "block_size": BLOCK,
    "num_kv_heads": 1,
    "head_size": 32,
    "dtype": torch.float32,
}
FULL = FullAttentionSpec(**SHAPE)
SLIDING = SlidingWindowSpec(**SHAPE, sliding_window=64)
CHUNKED = ChunkedLocalAttentionSpec(**SHAPE, attention_chunk_size=64)
MAMBA = MambaSpec(block_size=BLOCK, shapes=((4, 4),), dtypes=(torch.float32,))


@pytest.fixture(scope="module")
def config() -> VllmConfig:
    arguments = EngineArgs(model=str(MODEL), dtype="float32", max_model_len=2048, block_size=BLOCK)
    config = arguments.create_engine_config()
    config.cache_config.kv_cache_layout = "LBNHC"  # the engine core chooses it from the backends
    return config


def kv_cache(config: VllmConfig, *layers: KVCacheSpec) -> KVCacheConfig:
    """In the groups that vLLM itself would make of these layers."""
    groups = get_kv_cache_groups(config, {f"layer.{i}": spec for i, spec in enumerate(layers)})
    return KVCacheConfig(num_blocks=100, kv_cache_tensors=[], kv_cache_groups=groups)


def refusal_of(config: VllmConfig, *layers: KVCacheSpec, role: Role = Role.COLOCATED) -> str:
    with pytest.raises(FeatureRefused) as refusal:
        check_features(config, kv_cache(config, *(layers or (FULL,))), role)
    return str(refusal.value)


def test_a_plain_model_is_let_through(config: VllmConfig) -> None:
    check_features(config, kv_cache(config, FULL, FULL), Role.COLOCATED)


@pytest.mark.parametrize(
    ("part", "name", "value", "text"),
    [
        ("cache_config", "enable_prefix_caching", False, "enable_prefix_caching must be true"),
        ("parallel_config", "data_parallel_size", 2, "data_parallel_size must be 1, got 2"),
        ("parallel_config", "data_parallel_index", 1, "data_parallel_size must be 1, got 2"),
        ("parallel_config", "pipeline_parallel_size", 2, "pipeline_parallel_size must be 1, got 2"),
        ("parallel_config", "decode_context_parallel_size", 2, "must be 1, got 2: a KV block"),
        ("parallel_config", "prefill_context_parallel_size", 2, "must be 1, got 2: a KV block"),
        ("scheduler_config", "enable_chunked_prefill", False, "enable_chunked_prefill must be"),
        ("cache_config", "kv_offloading_size", 4.0, "kv_offloading_size must not be set, got 4.0"),
    ],
)
def test_an_argument_is_refused_in_the_engine_as_in_the_configuration(
    config: VllmConfig,
    monkeypatch: pytest.MonkeyPatch,
    part: str,
    name: str,
    value: Any,
    text: str,
) -> None:
    monkeypatch.setattr(getattr(config, part), name, value)
    assert text in refusal_of(config)


@pytest.mark.parametrize("method", ["eagle", "draft_model", "mtp"])
def test_a_drafter_with_state_of_its_own_is_refused(
    config: VllmConfig, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(config, "speculative_config", type("Spec", (), {"method": method}))
    assert f"spec_method must be ngram, got '{method}'" in refusal_of(config)


OURS = {
    "NixlConnector": "engine.nixl",
    "MultiConnector": "engine.kv_union",
    "HostTierConnector": "engine.host_tier",
}


@pytest.mark.parametrize(
    ("role", "connectors"),
    [
        (Role.COLOCATED, ["HostTierConnector"]),
        (Role.PREFILL, ["NixlConnector", "MultiConnector"]),
        (Role.DECODE, ["NixlConnector", "MultiConnector"]),
    ],
)
def test_an_instance_takes_the_connectors_that_the_configuration_gives_it_and_no_other(
    config: VllmConfig, monkeypatch: pytest.MonkeyPatch, role: Role, connectors: list[str]
) -> None:
    for connector, module in OURS.items():
        transfer = KVTransferConfig(
            kv_connector=connector, kv_role="kv_both", kv_connector_module_path=module
        )
        monkeypatch.setattr(config, "kv_transfer_config", transfer)
        if connector in connectors:
            check_features(config, kv_cache(config, FULL), role)
        else:
            assert f"kv_connector on a {role} instance must be" in refusal_of(config, role=role)


@pytest.mark.parametrize(
    ("role", "connector", "text"),
    [
        (Role.COLOCATED, "OffloadingConnector", "ends vLLM's scheduler with a failed assertion"),
        (Role.PREFILL, "MultiConnector", "ends vLLM's scheduler with a failed assertion"),
        (Role.DECODE, "MultiConnector", "into a block that the other is still to copy"),
        (Role.DECODE, "OffloadingConnector", "host_tier in the configuration adds host memory"),
    ],
)
def test_kv_from_elsewhere_by_vllms_own_connectors_is_refused(
    config: VllmConfig, monkeypatch: pytest.MonkeyPatch, role: Role, connector: str, text: str
) -> None:
    transfer = KVTransferConfig(kv_connector=connector, kv_role="kv_both")
    monkeypatch.setattr(config, "kv_transfer_config", transfer)
    assert text in refusal_of(config, role=role)


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
@pytest.mark.parametrize("connector", ["NixlConnector", "NixlPullConnector", "NixlPushConnector"])
def test_a_connector_that_does_not_look_at_leases_is_refused(
    config: VllmConfig, monkeypatch: pytest.MonkeyPatch, role: Role, connector: str
) -> None:
    transfer = KVTransferConfig(kv_connector=connector, kv_role="kv_both")
    monkeypatch.setattr(config, "kv_transfer_config", transfer)
    assert "must come from kv_connector_module_path 'engine.nixl'" in refusal_of(config, role=role)


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ([FULL, SLIDING], "has 2 groups (FullAttentionSpec, SlidingWindowSpec)"),
        ([FULL, CHUNKED], "has 2 groups (ChunkedLocalAttentionSpec, FullAttentionSpec)"),
        ([SLIDING, SLIDING], "(SlidingWindowSpec) gives blocks back while a prompt is computed"),
        ([CHUNKED], "(ChunkedLocalAttentionSpec) gives blocks back"),
        ([MAMBA], "Mamba layers (MambaSpec)"),
    ],
)
def test_a_model_whose_kv_is_not_one_full_group_is_refused(
    config: VllmConfig, layers: list[KVCacheSpec], text: str
) -> None:
    refusal = refusal_of(config, *layers)
    assert text in refusal
    assert "; s" in refusal, "it says what to set, or to serve it elsewhere"


@pytest.mark.parametrize("layers", [[FULL, SLIDING], [FULL, CHUNKED]])
def test_what_the_refusal_of_several_groups_advises_makes_one(
    config: VllmConfig, monkeypatch: pytest.MonkeyPatch, layers: list[KVCacheSpec]
) -> None:
    monkeypatch.setattr(config.scheduler_config, "disable_hybrid_kv_cache_manager", True)
    check_features(config, kv_cache(config, *layers), Role.COLOCATED)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("is_encoder_decoder", "is an encoder-decoder"),
        ("supports_multimodal_inputs", "set language_model_only: true"),
    ],
)
def test_a_model_with_inputs_other_than_text_is_refused(
    config: VllmConfig, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    monkeypatch.setattr(type(config.model_config), name, property(lambda self: True))
    assert text in refusal_of(config)


def test_every_problem_is_told_at_once(config: VllmConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config.parallel_config, "pipeline_parallel_size", 2)
    monkeypatch.setattr(config.cache_config, "enable_prefix_caching", False)
    assert len(refusal_of(config, FULL, SLIDING).split("; and ")) == 3


@pytest.mark.parametrize(
    ("engine_args", "text"),
    [
        ({"enable_prefix_caching": False}, "shadow KV lives there"),
        ({"kv_offloading_size": 1}, "kv_offloading_size must not be set, got 1"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 4096}, "in chunks"),
    ],
)
def test_an_engine_does_not_start_with_a_refused_feature(
    engine_args: dict[str, Any], text: str
) -> None:
    with pytest.raises(FeatureRefused, match=text):
        scheduler_of(ColocatedScheduler, params(), **engine_args)


def test_a_shadow_warms_the_adapter_that_it_names_and_no_other() -> None:
    limits = {"max_loras": 1, "max_cpu_loras": 2, "max_lora_rank": 8}
    world = World(scheduler_of(ColocatedScheduler, params(), enable_lora=True, **limits))
    text = prompt(20 * BLOCK)
    for request in (shadow("s", text), *(routed(n, text, n) for n in ("same", "other", "base"))):
        number = {"s": 1, "same": 1, "other": 2}.get(request.request_id)
        if number is not None:
            request.lora_request = LoRARequest(f"adapter-{number}", number, "/nowhere")
            _hashed_again(request)
        world.add(request)
        world.run()
    cached = {name: end.prefill_stats.num_cached_tokens for name, end in world.finished.items()}
    assert cached["same"] == 19 * BLOCK
    assert cached["other"] == cached["base"] == 0


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("is_shadow", [False, True])
def test_a_shadow_waits_while_others_fill_the_places_of_adapters(
    mode: str, is_shadow: bool
) -> None:
    """vLLM asserts that the adapters of all that runs fit, a shadow that comes back among it."""
    asynchronous = mode == "async"
    limits = {"enable_lora": True, "max_loras": 1, "max_cpu_loras": 2, "max_lora_rank": 8}
    scheduler = scheduler_of(ColocatedScheduler, params(), asynchronous=asynchronous, **limits)
    world = World(scheduler, depth=1 + asynchronous)
    started = shadow("s", 20 * BLOCK, probability=0.5)
    other = shadow("n", 20 * BLOCK) if is_shadow else normal("n", 40, max_tokens=20)
    for number, request in enumerate((started, other), start=1):
        request.lora_request = LoRARequest(f"adapter-{number}", number, "/nowhere")
        world.add(request)
        for _ in range(3):
            world.step()
    world.run()
    assert {end.finish_reason for end in world.finished.values()} == {FinishReason.LENGTH}


def _hashed_again(request: Any) -> None:
    """The adapter is part of every block's hash, and was not known when it was first made."""
    request.block_hashes.clear()
    request.update_block_hashes()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_under_the_priority_policy_a_shadow_comes_after_the_least_of_all(mode: str) -> None:
    asynchronous = mode == "async"
    scheduler = scheduler_of(
        ColocatedScheduler,
        params(kv_cap_share=1.0),
        asynchronous=asynchronous,
        blocks=64,
        scheduling_policy="priority",
    )
    world = World(scheduler, depth=1 + asynchronous)
    world.add(shadow("s", 50 * BLOCK))
    for _ in range(9):
        world.step()
    last, first = normal("last", 40 * BLOCK, 4), normal("first", 10 * BLOCK, 4)
    last.priority, first.priority = 1000, -1000
    world.add(last, first)
    built = world.step()
    assert "s" not in built
    assert next(iter(built)) == "first"
    world.run()
    assert world.emitted["first"] == world.emitted["last"] == 4
    assert last.num_preemptions == first.num_preemptions == 0


def test_quantised_kv_changes_nothing_for_the_scheduler() -> None:
    world = World(scheduler_of(ColocatedScheduler, params(), kv_cache_dtype="fp8"))
    text = prompt(20 * BLOCK)
    world.add(shadow("s", text))
    world.run()
    world.add(routed("call", text, "session"))
    world.run()
    assert world.finished["call"].prefill_stats.num_cached_tokens == 19 * BLOCK


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_shadow_chunk_never_carries_draft_tokens(mode: str) -> None:
    """vLLM fills an admission of one token up with drafts: positions of the prompt behind a
    shadow's chunk would get the KV of made-up tokens."""
    asynchronous = mode == "async"
    scheduler = scheduler_of(
        ColocatedScheduler,
        params(n_min_tokens=1, max_chunk_tokens=1),
        asynchronous=asynchronous,
        speculative_config={
            "method": "ngram",
            "num_speculative_tokens": 3,
            "prompt_lookup_max": 3,
        },
    )
    world = World(scheduler, depth=1 + asynchronous)
    world.add(normal("decoding", 20, max_tokens=100))
    for _ in range(4):
        world.step()
    outputs: list[Any] = []
    build = scheduler.schedule

    def schedule() -> Any:
        outputs.append(build())
        return outputs[-1]

    scheduler.schedule = schedule
    world.add(shadow("s", 40))
    for _ in range(20):
        world.step()
    assert sum("s" in output.num_scheduled_tokens for output in outputs) > 10
    assert not any("s" in output.scheduled_spec_decode_tokens for output in outputs)
