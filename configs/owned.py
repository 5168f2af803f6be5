"""vLLM flags and variables that follow from the configuration: nobody sets them by hand.

Hosts: configs.checks (a clear error before anything starts), engine.launch (which sets them)."""

from __future__ import annotations

import re

OWNED_FLAGS = {
    "model": "models.<name>.path",
    "served_model_name": "the model's name in the configuration",
    "dtype": "models.<name>.dtype",
    "max_model_len": "models.<name>.max_model_len",
    "block_size": "models.<name>.block_size",
    "host": "instances.<name>.host",
    "port": "instances.<name>.port",
    "uds": "instances.<name>.port",
    "config": "engine_args",
    "api_key": "coordinator.engine_secret",
    "scheduler_cls": "instances.<name>.role",
    "additional_config": "the shadow section",
    "kv_transfer_config": "instances.<name>.role",
    "enable_prefix_caching": "nothing: shadow work is useless without it",
    "prefix_caching_hash_algo": "nothing: block hashes must compare across processes",
    "enable_prompt_tokens_details": "nothing: the coordinator needs the counts",
    "otlp_traces_endpoint": "coordinator.otlp_endpoint",
    "enable_scale_out": "nothing: the coordinator renders prompts there",
}
"""By long name with underscores; and what to set in the configuration instead."""

OWNED_VARIABLES = {
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "instances.<name>.kv_host",
    "VLLM_NIXL_SIDE_CHANNEL_PORT": "instances.<name>.kv_port",
    "VLLM_CPU_OMP_THREADS_BIND": "instances.<name>.cpus",
    "CUDA_VISIBLE_DEVICES": "instances.<name>.devices",
    "SHADOWPREFILL_ENGINE_SECRET": "coordinator.engine_secret",
    "PYTHONHASHSEED": "nothing: block hashes must compare across processes",
}

_FLAG = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)*")


def owned_text(source: str) -> str:
    return f"must not be set: shadowprefill sets it itself, from {source}"


def flag_problem(flag: str, value: object) -> str | None:
    """What is wrong with an entry of `engine_args`; None if nothing is."""
    plain = flag.strip("-").replace("-", "_")
    source = OWNED_FLAGS.get(plain.split(".", 1)[0].removeprefix("no_"))
    if source is not None:
        return owned_text(source)
    if not _FLAG.fullmatch(flag):
        return f"must be the long name of a vLLM flag with underscores, such as {plain!r}"
    if value is None:
        return "must have a value, got nothing"
    return None
